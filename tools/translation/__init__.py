"""What translating a lesson needs: its blocks of text, their strings, and what may go wrong.

`tools/translate.py` is the program; `translations/README.md` says how a language is added.
"""
