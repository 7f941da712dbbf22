"""The command `attentiondrop`, with one file per sub-command. A framework is imported only when a command needs it."""
