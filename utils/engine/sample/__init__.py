"""From scores to tokens. In vLLM: `v1/sample`."""
