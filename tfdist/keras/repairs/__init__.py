"""Corrections of defects of Keras and TensorFlow, by subject; see `tfdist.keras.registry`.

Each has a test that fails once Keras no longer needs it: tests/parallel/keras/test_keras_repairs.py
for several workers, tests/devices/test_repairs.py for several devices of one process.
"""
