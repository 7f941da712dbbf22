"""Several random passes ("views") over one input, and the loss between their outputs."""
