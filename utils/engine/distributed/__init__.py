"""Many processes run one model: ranks, what they send each other, and who holds which part."""
