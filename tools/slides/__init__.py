"""Slides of the lessons: `make slides`. build.py starts, talk.py chooses, deck.py writes HTML."""
