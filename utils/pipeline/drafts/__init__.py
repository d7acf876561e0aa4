"""The helpers of speculative decoding: a draft model and Medusa heads, trained on the target."""
