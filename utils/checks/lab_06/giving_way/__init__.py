"""Giving way when memory runs out: who, what it costs, and how to come back."""
