"""The flight recorder in Python; see core/trace."""
