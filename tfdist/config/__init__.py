"""The environment of a job: what TF_CONFIG and the settings say, read once."""
