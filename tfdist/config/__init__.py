"""The configuration of a job: `TF_CONFIG` and the `TFDIST_*` variables, read here alone."""
