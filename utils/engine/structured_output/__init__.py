"""Answers of a given form: which tokens may come next. In vLLM: `v1/structured_output`."""
