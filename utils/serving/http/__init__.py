"""What the course's servers need from HTTP."""
