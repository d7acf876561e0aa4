"""From a step's schedule to tensors, through the model, to tokens. In vLLM: `v1/worker`."""
