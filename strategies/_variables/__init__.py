"""Variables that strategies create, and where they are placed."""
