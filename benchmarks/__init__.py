"""What is fast here, measured against other software in one run. Not part of the tests."""
