"""The internals of TensorFlow and Keras that tfdist uses, and that a new release may break."""
