"""Parameter servers and their clients."""
