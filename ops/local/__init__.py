"""Ops on the replicas of one process."""
