"""The paths that never hold a tensor of the size of the logits."""
