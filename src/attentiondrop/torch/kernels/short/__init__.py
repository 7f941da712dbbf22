"""Attention of rows with at most 256 keys: CUDA C++ kernels that NVRTC compiles when they are first used."""
