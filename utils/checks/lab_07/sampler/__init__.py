"""Exercise 5: the rejection sampler, judged by all that it can do with its random numbers."""
