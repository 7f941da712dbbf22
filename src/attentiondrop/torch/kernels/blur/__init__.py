"""Blur of rows, and of the diagonals on which causality cuts a blur off."""
