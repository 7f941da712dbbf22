"""The command `attentiondrop`, one file per sub-command. Frameworks are imported when a command runs, not before."""
