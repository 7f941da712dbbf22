"""Questions that take many runs: comparisons, ablations, certificates, gradient variance."""
