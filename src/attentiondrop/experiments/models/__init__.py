"""The models of the experiments, one file each."""
