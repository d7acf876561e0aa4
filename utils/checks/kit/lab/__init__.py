"""A lab's checks in three files: what is drawn and judged, right answers, and words.

utils/checks/lab_02/__init__.py   what is drawn, what is right
utils/checks/lab_02/answers.py    one right answer for each exercise, as in the solution
utils/checks/lab_02/words.yaml    titles, points, praise, clauses, and mistakes as edits
"""
