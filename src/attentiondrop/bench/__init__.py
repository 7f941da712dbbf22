"""Timings of attention and of a training step: what `attentiondrop bench` and the programs in `benchmarks/` run.

Nothing here is imported by the library itself. `shapes`, `quantiles` and `records` load no framework.
"""
