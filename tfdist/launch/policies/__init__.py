"""The decisions of a launched job: fixed, and elastic."""
