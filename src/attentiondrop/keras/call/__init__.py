"""What one attention call does in training: its regularisers and their draws, what each row sees, the computation."""
