"""Several stochastic passes over one input, and the loss between their outputs."""
