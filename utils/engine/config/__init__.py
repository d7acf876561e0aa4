"""What the model looks like, and how the engine runs it. In vLLM: `vllm/config`."""
