"""Timings of attention and of a training step, for `attentiondrop bench` and the programs in `benchmarks/`.

The library itself does not import this package. `shapes`, `quantiles` and `records` load no framework.
"""
