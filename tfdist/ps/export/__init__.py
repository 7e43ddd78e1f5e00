"""Embedding tables in files for other programs."""
