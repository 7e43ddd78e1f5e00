"""Elastic training, of Keras 3 and of tf_keras: `fit` among members that change."""
