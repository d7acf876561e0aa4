"""Memory models, traces and simulators: what can be computed without running a model."""
