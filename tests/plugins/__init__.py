"""What the root's `conftest.py` adds to pytest: order, notebooks, clean rooms, and reports."""
