"""Says which internals an installed release has moved, where it lacks some that tfdist imports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tfdist.errors import TfdistError


@contextlib.contextmanager
def told(internals: str, version: str, error: type[TfdistError]) -> Iterator[None]:
    """Raises an error that names what is missing, if an import of internals fails in the body.

    Args:
      internals: the package of the internals, such as "keras.src".
      version: the library and its installed release, such as "Keras 3.16.0".
      error: the type of the error.
    """
    try:
        yield
    except ImportError as failed:
        if not (failed.name or "").startswith(internals):
            raise
        raise error(
            f"{version} has moved or removed internals that this release of tfdist uses: {failed}. "
            "Install a release that tfdist was tested with, or a tfdist release that supports yours"
        ) from failed
