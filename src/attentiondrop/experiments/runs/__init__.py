"""Runs: the request for a run, how one or many runs are done, and what is stored of them."""
