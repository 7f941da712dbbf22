"""Bridges to training libraries. Each module imports its library; nothing imports these on its own."""
