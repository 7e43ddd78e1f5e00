"""This process in its job: start, rank, groups, and objects and variables of all ranks."""
