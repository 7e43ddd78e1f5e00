"""Training steps on data tasks in loops other than `fit`: the trained records are committed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfdist.data import feed as feeds
from tfdist.data.pipeline import feed_of

if TYPE_CHECKING:
    import tensorflow as tf


@contextlib.contextmanager
def step(dataset: tf.data.Dataset | None = None, batches: int = 1) -> Iterator[None]:
    """A training step on the next batch of a dataset; for loops other than `fit`.

    With `ParameterServerStrategy` in the modes "async" and "ssp" the step's push commits the batch:
    each record counts once, also if this worker is killed. Otherwise this is `commit` after the
    step. An error in the step commits nothing.

    Args:
      dataset: as for `commit`.
      batches: how many batches are used within, by one step each.

    Raises:
      ValueError: as `commit`.

    Example:

    ```python
    for batch in strategy.experimental_distribute_dataset(dataset):
        with tfdist.data.step():
            strategy.run(train_step, args=(batch,))
    ```
    """
    feed = _feed(dataset)
    feed.begin_steps(batches)
    try:
        yield
    except BaseException:
        feed.end_steps()
        raise
    feed.train(batches)


def commit(dataset: tf.data.Dataset | None = None, batches: int = 1) -> None:
    """Says that the next batch of a dataset is trained; for loops other than `fit`.

    Call it after each step, where `step` cannot be used. A strategy that distributes the dataset
    counts the records of its batches; without a strategy use `tfdist.data.tracked`. Nothing is sent
    at once: this worker reports about twice a second.

    Args:
      dataset: made of `from_ranges`, `from_arrays` or `from_files`. `None`: the dataset that this
        process reads.
      batches: how many batches the step has used.

    Raises:
      ValueError: the process reads none, or several.

    Example:

    ```python
    for batch in tfdist.data.tracked(dataset):
        train_step(batch)
        tfdist.data.commit()
    ```
    """
    _feed(dataset).train(batches)


def _feed(dataset: tf.data.Dataset | None) -> feeds.Feed:
    """Returns the feed of a dataset; without one, of the only dataset that this process reads."""
    if dataset is not None:
        feed = feed_of(dataset)
        if feed is None:
            raise ValueError(
                "tfdist.data.commit: expected a dataset made of from_ranges, from_arrays or "
                f"from_files, received {dataset!r:.200}"
            )
        return feed
    read = [feed for feed in feeds.current.all() if feed.is_read]
    if len(read) != 1:
        raise ValueError(
            "tfdist.data.commit: expected one dataset of tasks that is read, received "
            f"{[feed.name for feed in read]}: pass the dataset"
        )
    return read[0]
