"""Triton kernels. They are imported only when a fused path needs them, so the library also works without Triton."""
