"""vLLM in processes of its own: measured, asked one question at a time, or as a server."""
