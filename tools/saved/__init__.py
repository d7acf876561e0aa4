"""Outputs that are committed with the notebooks: do they still belong to their cells?"""
