"""One run and many: what is asked for, doing it, and what is kept of it."""
