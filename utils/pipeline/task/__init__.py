"""The task: a customer's message in, strict JSON out. Its data, its answers, their score."""
