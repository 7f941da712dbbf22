"""Studies of runs: comparisons, ablations, certificates, gradient variance."""
