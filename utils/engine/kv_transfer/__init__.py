"""Keys and values that come from, and go to, somewhere else. In vLLM: `distributed/kv_transfer`."""
