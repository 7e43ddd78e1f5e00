"""Training and evaluation of an `Estimator` in one task."""
