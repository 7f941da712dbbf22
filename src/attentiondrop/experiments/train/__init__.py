"""Training one model: the loop, its seeds, its checkpoints, the Accelerator."""
