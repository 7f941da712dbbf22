"""What several kernels use: hashing, logits of a tile, powers of two, tile sizes."""
