"""From records to numbers: the outcome of each run, means, paired differences, and remarks on how to read them."""
