"""Read and write plain files: never half of one, typed, with clear errors. Knows nothing about training."""
