"""Variables of strategies, and their placement on parameter servers."""
