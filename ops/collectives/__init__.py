"""Python faces of the collectives."""
