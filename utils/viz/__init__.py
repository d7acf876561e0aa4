"""Plots (matplotlib) and widgets (ipywidgets) of the lessons."""
