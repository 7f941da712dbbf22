"""Blur of rows, and of the diagonals where a causal mask truncates the blur."""
