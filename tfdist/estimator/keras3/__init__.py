"""Keras 3 models, layers and optimizers in Estimators."""
