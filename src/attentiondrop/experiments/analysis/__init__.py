"""From records to numbers: what became of each run, means, paired differences, what may be said about them."""
