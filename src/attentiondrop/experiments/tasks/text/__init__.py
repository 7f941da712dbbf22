"""What tasks on text share: reading files of lines, and subwords."""
