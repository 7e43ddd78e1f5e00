"""How workers share out a dataset."""
