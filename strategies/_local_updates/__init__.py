"""The rounds of `LocalUpdateStrategy`: training alone, and synchronization."""
