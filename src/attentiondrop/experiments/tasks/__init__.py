"""What is learned: a task brings data, model, loss and metrics. Everything else works on any task."""
