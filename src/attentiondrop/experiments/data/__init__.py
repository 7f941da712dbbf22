"""The data sets of the experiments, one file each."""
