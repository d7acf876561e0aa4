"""Pictures of one forward pass: tokens, attention, sampling, the roofline."""
