"""The engine's kernels in Triton, for a card: `LLM(kernels="triton")`. See `layers.py`."""
