"""Tasks: a task provides data, model, loss and metrics. The other packages work with any task."""
