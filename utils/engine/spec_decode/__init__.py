"""Guessing tokens ahead, to verify several in one pass. In vLLM: `v1/spec_decode`."""
