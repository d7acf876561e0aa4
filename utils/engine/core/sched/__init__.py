"""Which requests run in a step, and how many tokens of each. In vLLM: `v1/core/sched`."""
