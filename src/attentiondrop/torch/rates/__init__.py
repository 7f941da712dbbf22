"""Rates that change in training: scheduled, learned, or steered by the entropy of attention; and what is measured."""
