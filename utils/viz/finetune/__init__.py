"""Pictures of training and merging."""
