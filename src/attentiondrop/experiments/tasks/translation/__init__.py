"""Translation of sentences: data, model, search, metrics."""
