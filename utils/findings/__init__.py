"""Sentences that lessons compute from what they have just measured: one file for each lesson."""
