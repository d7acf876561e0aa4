"""What the checks of all labs are made of: running answers, comparing, words, pictures."""
