"""Scripts that compare this program with other software, measured alternately. Not tests."""
