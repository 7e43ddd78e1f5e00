"""`tfdist.predict`: see the package."""

from __future__ import annotations

import contextlib
import operator
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.config.cluster import Cluster
from tfdist.config.validation import addresses_in
from tfdist.data.sources import RecordSource, source_of
from tfdist.errors import PredictionError, Preempted
from tfdist.job import process
from tfdist.prediction import fingerprints, manifest
from tfdist.prediction.batches import Batches
from tfdist.prediction.claims import Claims
from tfdist.prediction.commits import has_rows
from tfdist.prediction.folder import OutputFolder
from tfdist.prediction.formats import format_of
from tfdist.prediction.input_files import InputFiles
from tfdist.prediction.job_description import Arguments, agree
from tfdist.prediction.manifest import Predicted
from tfdist.prediction.merged_metrics import PartMetrics
from tfdist.prediction.models import Forward, Predictor, predictor_of
from tfdist.prediction.part import PartMaker, unpacked
from tfdist.prediction.progress import PredictionProgress
from tfdist.prediction.rejections import Rejections
from tfdist.prediction.worker import PredictionWorker
from tfdist.prediction.workers import LivingWorker, new_id
from tfdist.prediction.writers import RowFormat
from tfdist.preemption.notice import notice

_ALL_PARKED = "park-all"
_ERRORS = ("fail", "park", _ALL_PARKED)


def predict(
    model: Any,
    data: tf.data.Dataset,
    output: str | os.PathLike[str],
    *,
    map: Callable[..., Any] | None = None,
    batch_size: int = 256,
    keep: Sequence[str] = (),
    format: str | RowFormat = "parquet",
    errors: str = "fail",
    metrics: Sequence[Any] = (),
    signature: str | None = None,
    tables: str | Sequence[str] | None = None,
    verbose: int = 1,
) -> Predicted:
    """Predicts each row of some data exactly once, into files; with any number of workers.

    Every worker calls it with the same arguments and the same output folder, which all see. It
    returns when the parts of all workers are there. Workers may start late, leave and be killed. A
    call for a folder that others have begun continues with the missing parts.

    Args:
      model: a Keras model; the folder of a SavedModel or a `.keras` file; or a function of a batch
        that returns a tensor, or a list or dict of tensors, with a row for each record.
      data: from `tfdist.data.from_files`, `from_arrays` or `from_ranges`, without transformations.
        Each task becomes a part.
      output: a new folder, or the folder of this job.
      map: of one record; returns the features, or (features, labels) or (features, labels,
        weights). Features are the model's input, or a dict with it.
      batch_size: records of a batch.
      keep: names of features that are written beside the predictions. If the model does not name
        its inputs, they are not given to it.
      format: "parquet", "tfrecord", "npz" or "jsonl"; or an object with a `suffix` and
        `open(path)`, whose result has `write(columns)` and `close()`.
      errors: "fail": a record that cannot be read, mapped or predicted ends the job, which can be
        continued. "park": it is named in `_rejected`, and has no row. So is a record that has
        killed its worker three times. If the first 100 records of a worker are rejected, and no
        part has rows, or at last all records of the job, that is an error. "park-all": parks them
        too.
      metrics: Keras metrics, or their names, of the model's only output and the labels.
      signature: of a SavedModel (default: "serving_default").
      tables: the addresses of all servers of `tfdist ps serve`, in their order, for a SavedModel of
        `export_for_serving(tables="served")`: a list, or a text with commas.
      verbose: 0 prints no progress; else the first worker does.

    Returns:
      The names of the parts, the numbers of rows and bad records, and the metrics of all rows.

    Raises:
      PredictionError: the model, the data or the folder is not as described, or belongs to another
        job; or a record is bad. The parts that are done stay.
      ClusterConfigError, AuthenticationError: the servers of the tables refuse this process, or
        lack a table of the model.
      tf.errors.OpError: the servers do not answer.
      OSError: a file cannot be read or written: it has vanished, or the disk is full.
      Preempted: SIGTERM has told this process to end.

    Example:

    ```python
    model = keras.models.load_model("model.keras")
    data = tfdist.data.from_arrays({"id": ids, "x": x}, task_size=10_000, name="predict")
    tfdist.predict(model, data, "out", keep=["id"], format="jsonl")
    ```
    """
    source = _checked_source(data)
    if errors not in _ERRORS:
        raise PredictionError(
            f"errors: expected 'fail', 'park' or {_ALL_PARKED!r}, received {errors!r}"
        )
    if isinstance(batch_size, bool) or not hasattr(batch_size, "__index__") or batch_size < 1:
        raise PredictionError(
            f"batch_size: expected a whole number of at least 1, received {batch_size!r:.200}"
        )
    batch_size = operator.index(batch_size)  # also of numpy
    if isinstance(keep, str):
        raise PredictionError(f"keep: expected a list of names, received {keep!r}")
    chosen = format_of(format)
    if isinstance(tables, str):
        tables = addresses_in(tables, "tables", "servers of tables")
    predictor = predictor_of(model, signature, tables)
    part_metrics = PartMetrics(metrics)
    input_files = InputFiles(source.paths)
    arguments = Arguments(
        model=predictor.fingerprint,
        map=fingerprints.of_function(map),
        batch_size=batch_size,
        keep=tuple(keep),
        suffix=chosen.suffix,
        errors=errors.removesuffix("-all"),  # the parts are the same
        metrics=part_metrics.names,
        content=fingerprints.of_input(source.paths),
    )
    # Workers share the folder alone: they must not wait for each other.
    cluster = Cluster.from_environment(needs_others=False)
    id = new_id()
    folder = OutputFolder(output, id)
    folder.open()
    name = f"{cluster.task_name} on {socket.gethostname()}"
    with LivingWorker(id, folder.workers, name, source.spec.lease) as worker, notice.expected():
        folder.check_links()
        claims = Claims(folder, worker, batch_size)
        job = agree(
            folder, claims, source.spec, source.describe, arguments, input_files, _end_if_told
        )
        batches = Batches(source, job.data, input_files, map, batch_size)
        maker = PartMaker(
            folder=folder,
            job=job,
            batches=batches,
            forward=_forward(predictor, batches, keep),
            format=chosen,
            metrics=part_metrics,
            rejections=Rejections(errors == _ALL_PARKED, lambda: has_rows(folder)),
            keep=keep,
            may_continue=_end_if_told,
        )
        # Other workers would show the same.
        is_first = cluster.rank in (0, None)
        progress = PredictionProgress(folder, job, bool(verbose) and is_first)
        with _observed(cluster, progress if is_first else None), progress.told_when_stopped():
            PredictionWorker(maker, claims, worker, progress).run()
    return manifest.read(folder)


@contextlib.contextmanager
def _observed(cluster: Cluster, progress: PredictionProgress | None) -> Iterator[None]:
    """Serves the metrics of this process, with the progress of the job."""
    process.current.serve_metrics(cluster)
    if progress is not None:
        process.current.shown_queues = lambda: [progress.numbers()]
    try:
        yield
    finally:
        process.current.shown_queues = list


def _checked_source(data: Any) -> RecordSource:
    source = source_of(data)
    if source is None:
        raise PredictionError(
            "data: expected the result of tfdist.data.from_files, from_arrays or from_ranges, "
            "without map, batch or other transformations of it (use map=...), received "
            f"{data!r:.200}"
        )
    if source.spec.shuffle:
        raise PredictionError(
            "data: expected shuffle=False: the rows of a part are in the order of the input"
        )
    return source


def _forward(predictor: Predictor, batches: Batches, keep: Sequence[str]) -> Forward:
    features, _, _ = unpacked(batches.spec)
    return Forward(predictor, features, keep)


def _end_if_told() -> None:
    if notice.at is not None:
        raise Preempted
