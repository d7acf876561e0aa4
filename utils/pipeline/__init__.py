"""The real pipeline: data, fine-tune, merge, quantize, evaluate, serve."""
