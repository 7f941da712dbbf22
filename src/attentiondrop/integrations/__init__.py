"""Integrations with training libraries. Each module imports its library; import the module that you need."""
