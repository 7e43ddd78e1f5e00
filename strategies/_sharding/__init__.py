"""Variables that are cut into one part for each worker."""
