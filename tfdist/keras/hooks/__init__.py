"""Product code that Keras calls, by subject; see `tfdist.keras.registry`."""
