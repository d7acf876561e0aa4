"""Pictures of 4-bit weights and of what they cost."""
