"""The internals of TensorFlow and Keras that tfdist uses: what a new release of them may break."""
