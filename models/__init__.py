"""The models: each network is written once, for both data formats."""
