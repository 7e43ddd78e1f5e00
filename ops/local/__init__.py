"""Python faces of ops within one process."""
