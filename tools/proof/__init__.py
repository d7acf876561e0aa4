"""`make test` and `make test-full`: style first, everything, a second look, and a table."""
