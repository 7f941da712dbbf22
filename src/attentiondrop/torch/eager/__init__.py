"""The path that materialises the logits. It serves every regulariser, and defines what is right."""
