"""The type of flags and the parser of command lines. Declares no flags."""
