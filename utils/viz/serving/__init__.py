"""Pictures of servers under load, and of vLLM's prefix cache."""
