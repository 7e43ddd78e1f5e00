"""This process in its job: rank, groups, and what all ranks share."""
