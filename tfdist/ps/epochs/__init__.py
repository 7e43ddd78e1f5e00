"""Metrics and stops of an epoch, agreed by all workers of a parameter-server job."""
