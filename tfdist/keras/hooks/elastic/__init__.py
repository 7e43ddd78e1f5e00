"""Elastic training, of Keras 3 and of tf_keras: what a `fit` does among members that change."""
