"""Reductions among the devices of one process."""
