"""Python faces of the parameter servers and their client."""
