"""What grades a class: `make grade`. Learners' code runs shut in, and is read before it runs."""
