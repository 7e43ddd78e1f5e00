"""Makes the published `tensorflow-estimator` work with current TensorFlow."""
