"""Snapshots of parameter servers, and the redo log between them."""
