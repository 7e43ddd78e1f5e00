"""Statistics of running parameter servers."""
