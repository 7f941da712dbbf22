"""The paths that never build a tensor of the size of the logits. `attentiondrop.torch.dispatch` chooses among them."""
