"""Rates that change in training (scheduled, learned, or set by the entropy of attention), and what is measured."""
