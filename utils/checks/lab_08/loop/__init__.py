"""The learner's loop in the engine: exercise 9."""
