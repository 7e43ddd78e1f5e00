"""Hooks for replicas without rows; see `tfdist.keras.substitute_rows`."""
