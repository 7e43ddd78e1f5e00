"""Embedding tables in files that other programs read."""
