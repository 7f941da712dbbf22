"""What one call of `attention` asks for: inputs, visibility, regularisers, places. Nothing is computed here."""
