"""Triton kernels. Nothing here is imported before a path needs it: the library works where Triton is not installed."""
