"""The extras: packages that a part of tfdist needs beside the requirements of the whole.

`setup.py` reads them here. A message about a missing package names the packages themselves, because
pip finds them wherever tfdist came from: a wheel, a clone or an sdist. It would look for
`tfdist[NAME]` at a package index, which has no tfdist.
"""

from __future__ import annotations

import importlib.metadata
import shlex

EXTRAS: dict[str, tuple[str, ...]] = {
    # Pinned: its gaps with current TensorFlow are filled for this release alone. It names no
    # TensorFlow itself.
    "estimator": ("tensorflow-estimator==2.15.0", "tf_keras"),
    # Tables of embeddings to and from Parquet files.
    "parquet": ("pyarrow",),
    # Manifests of `tfdist k8s`.
    "k8s": ("PyYAML",),
    # Charts of `tfdist plan`.
    "plan": ("matplotlib",),
    # `tfdist.ray.run`.
    "ray": ("ray>=2.40",),
    # The messages of `tfdist serve`. Each release wants a TensorFlow at least as new as itself: pip
    # takes the release that fits, if the installed TensorFlow is named beside it.
    "serve": ("tensorflow-serving-api>=2.16,<3",),
    # The program that shows the files of `tfdist.callbacks.Metrics` and `PsStats`, and of Keras's
    # callback `TensorBoard`; writing them does not need it.
    "tensorboard": ("tensorboard",),
    # Certificates of encrypted connections; 42 makes and reads them as they are used here.
    "tls": ("cryptography>=42",),
}


def install_command(extra: str) -> str:
    """Returns the command that installs the packages of an extra.

    Example:
      >>> install_command("estimator")
      'pip install tensorflow-estimator==2.15.0 tf_keras'
    """
    return shlex.join(["pip", "install", *EXTRAS[extra]])


def install_command_here(extra: str) -> str:
    """Returns a command that also leaves the installed TensorFlow as it is.

    `tf_keras` and `tensorflow-serving-api` require a TensorFlow of their own release: pip takes
    their newest one, and replaces TensorFlow by its release, unless the command names another.
    """
    try:
        version = importlib.metadata.version("tensorflow")
    except importlib.metadata.PackageNotFoundError:  # such as tensorflow-cpu
        return f"{install_command(extra)} --no-deps"
    return f"{install_command(extra)} {shlex.quote(f'tensorflow=={version}')}"
