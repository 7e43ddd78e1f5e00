"""The program of a worker of `tfdist predict`."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfdist.config.printing import printable
from tfdist.data.sources import from_files
from tfdist.errors import PredictionError
from tfdist.prediction.options import FINAL_CODE, PredictOptions
from tfdist.prediction.predict import predict

_INTERRUPTED = 130  # 128 + SIGINT
# Errors of a file system or a server that may be gone in a moment.
_PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN)


def run(options: PredictOptions) -> int:
    """Predicts with this process as one worker; returns its exit code.

    Raises:
      Preempted: SIGTERM has told this process to end.
      Exception: an error after which the worker may be started again.
    """
    try:
        data = from_files(
            options.inputs,
            options.reader,
            options.task_size,
            header=options.header,
            lease=options.lease,
            name="predict",
        )
        result = predict(
            options.model,
            data,
            options.output,
            map=_loaded(options.map) if options.map else None,
            batch_size=options.batch_size,
            keep=options.keep,
            format=options.format,
            errors=options.errors,
            metrics=options.metrics,
            signature=options.signature,
            tables=options.tables,
        )
    except KeyboardInterrupt:  # `predict` has said what is left
        return _INTERRUPTED
    except Exception as error:
        if not _is_final(error):
            raise
        print(f"tfdist predict: error: {printable(str(error))}", file=sys.stderr)
        return FINAL_CODE
    rejected = f", {result.rejected} bad records in _rejected" if result.rejected else ""
    values = "".join(f", {name} {value:.6g}" for name, value in result.metrics.items())
    print(f"tfdist predict: {result.rows} rows in {len(result.parts)} parts{rejected}{values}")
    return 0


def _is_final(error: Exception) -> bool:
    """Whether another start of the worker would meet the same error."""
    if isinstance(error, OSError):
        return error.errno not in _PASSING
    return isinstance(error, ValueError | TypeError | ImportError)


def _loaded(name: str) -> Callable[..., Any]:
    """Returns the function that "module:name" or "file.py:name" names.

    Raises:
      PredictionError: there is none.
    """
    module, colon, function = name.rpartition(":")
    if not colon or not module:
        raise PredictionError(f"--map: expected MODULE:NAME or FILE.py:NAME, received {name!r}")
    try:
        if module.endswith(".py"):
            loaded = _module_of(Path(module))
        else:
            sys.path.append("")
            loaded = importlib.import_module(module)
        return getattr(loaded, function)
    except (ImportError, OSError, AttributeError) as error:
        raise PredictionError(f"--map {name}: expected a function: {error}") from error


def _module_of(file: Path) -> types.ModuleType:
    """Imports a file, which may import others of its folder, as a script may."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up there.
    sys.modules.setdefault(file.stem, loaded)
    sys.path.insert(0, str(file.resolve().parent))
    spec.loader.exec_module(loaded)
    return loaded


if __name__ == "__main__":
    sys.exit(run(PredictOptions.parse(sys.argv[1])))
