"""README.md is tested by test_docs.py and test_quotations.py."""
