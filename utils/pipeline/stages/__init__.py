"""The stages, from the base model to its 4-bit checkpoints, and the chain that they form."""
