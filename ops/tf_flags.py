"""Writes, as make variables, how to compile and link against the running TensorFlow.

python tf_flags.py FOLDER    writes FOLDER/tf<major.minor>.mk if it changes, and prints its path
"""

import os
import shlex
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf  # noqa: E402

version = ".".join(tf.__version__.split(".")[:2])
# -isystem: TensorFlow's headers are not ours to warn about. C++17 is ours to choose.
compile_flags = [
    shlex.quote(flag) if not flag.startswith("-I") else f"-isystem {shlex.quote(flag[2:])}"
    for flag in tf.sysconfig.get_compile_flags()
    if not flag.startswith("--std")
]
text = (
    f"TF_VERSION := {version}\n"
    f"TF_CFLAGS := {' '.join(compile_flags)}\n"
    f"TF_LDFLAGS := {shlex.join(tf.sysconfig.get_link_flags())}\n"
)
path = Path(sys.argv[1], f"tf{version}.mk")
if not path.exists() or path.read_text() != text:
    path.write_text(text)
print(path)
