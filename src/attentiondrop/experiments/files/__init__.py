"""Reading and writing plain files: whole or not at all, typed, with clear errors. Knows nothing of training."""
