"""Attention that decides on every logit inside the kernel: forward, backward, and the k largest of a row."""
