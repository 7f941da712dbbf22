"""What tasks share that use models and tokenizers of transformers: configurations, local folders, rates."""
