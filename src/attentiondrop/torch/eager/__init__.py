"""The path that builds the logits. It serves every regulariser, and the fused paths must agree with it."""
