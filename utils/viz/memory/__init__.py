"""Pictures of KV memory: its size, its waste, its blocks, and what is found in it again."""
