"""All of the program that does not stand at the top of the repository."""
