"""Who runs in a step, and in which blocks of memory. In vLLM: `v1/core`."""
