"""What runs a learner's own labs again and writes a page about it: `make verify`."""
