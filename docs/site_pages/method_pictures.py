"""Placeholder."""


def gallery() -> str:
    """Nothing yet."""
    return ""
