"""Text classification: models of transformers, mostly fine-tuned from a local folder."""
