"""Pictures of notebook 16: prefill and decode apart, and keys and values that are shared."""
