"""Training whose workers may die, leave and join while it runs."""
