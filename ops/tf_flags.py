"""Writes, as make variables, how to compile and link against a TensorFlow.

python tf_flags.py FOLDER            of the TensorFlow that this Python imports
python tf_flags.py FOLDER UNPACKED   of a wheel of TensorFlow that was unpacked into a folder

It writes FOLDER/tf<major.minor>.mk if that changes, and prints its path.
"""

import importlib.metadata
import os
import shlex
import sys
from pathlib import Path

# Of all releases that tfdist works with. Only TensorFlow itself tells them, when it is imported.
DEFINES = ["-D_GLIBCXX_USE_CXX11_ABI=1", "-DEIGEN_MAX_ALIGN_BYTES=64"]


def imported() -> tuple[str, list[str], list[str]]:
    """Returns the version, the flags to compile, and those to link."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    # C++17 is ours to choose.
    flags = [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("--std")]
    return tf.__version__, flags, tf.sysconfig.get_link_flags()


def unpacked(folder: Path) -> tuple[str, list[str], list[str]]:
    """As `imported`. The paths of the folder are not in the library that is built."""
    (distribution,) = importlib.metadata.distributions(path=[str(folder)])
    package = folder / "tensorflow"
    flags = [f"-I{package}/include", *DEFINES, f"-ffile-prefix-map={folder}=."]
    return distribution.version, flags, [f"-L{package}", "-l:libtensorflow_framework.so.2"]


version, compile_flags, link_flags = unpacked(Path(sys.argv[2])) if sys.argv[2:] else imported()
series = ".".join(version.split(".")[:2])
# -isystem: TensorFlow's headers are not ours to warn about.
compile_text = " ".join(
    f"-isystem {shlex.quote(flag[2:])}" if flag.startswith("-I") else shlex.quote(flag)
    for flag in compile_flags
)
text = (
    f"TF_VERSION := {series}\nTF_CFLAGS := {compile_text}\nTF_LDFLAGS := {shlex.join(link_flags)}\n"
)
path = Path(sys.argv[1], f"tf{series}.mk")
if not path.exists() or path.read_text() != text:
    path.write_text(text)
print(path)
