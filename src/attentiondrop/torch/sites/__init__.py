"""The kinds of attention that `attach` can reach, one module each, and how they are found."""
