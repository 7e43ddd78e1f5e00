"""Distribution of datasets to workers."""
