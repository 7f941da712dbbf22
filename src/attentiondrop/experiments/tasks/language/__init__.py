"""Language models: predict the next character, word or subword of plain text."""
