"""Plain scripts for vLLM, to copy and to change. They need nothing of this course but a model."""
