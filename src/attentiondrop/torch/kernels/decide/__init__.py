"""Attention kernels that make the decisions about every logit themselves: forward, backward, k largest of a row."""
