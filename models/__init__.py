"""The zoo: each network once, for both data formats."""
