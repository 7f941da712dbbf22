"""Recipes: which settings they have, and how they are read."""
