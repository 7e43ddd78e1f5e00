"""Prints, as make variables, how to compile and link against the TensorFlow that this Python
imports."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf  # noqa: E402

# -isystem: TensorFlow's headers are not ours to warn about. C++17 is ours to choose.
compile_flags = [
    flag.replace("-I", "-isystem ", 1)
    for flag in tf.sysconfig.get_compile_flags()
    if not flag.startswith("--std")
]
print("TF_VERSION :=", ".".join(tf.__version__.split(".")[:2]))
print("TF_CFLAGS :=", *compile_flags)
print("TF_LDFLAGS :=", *tf.sysconfig.get_link_flags())
