"""Attention over keys and values that lie in a cache, and that cache. In vLLM: `v1/attention`."""
