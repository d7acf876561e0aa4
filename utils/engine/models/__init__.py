"""The model: its forward pass and its weights. In vLLM: `model_executor/models`."""
