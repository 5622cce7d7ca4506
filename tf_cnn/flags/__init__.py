"""What a flag is, how command lines are read, and --help. Declares no flag."""
