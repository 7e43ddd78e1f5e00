"""Python objects sent between ranks, as pickles.

All ranks contribute to one all-gather, those that send nothing an empty part. Its header tells
every rank what the others asked for and whether an object could be pickled, so that all ranks
succeed or raise the same error.

    header of a rank   rank | bytes | root (-1: none) | whether pickling failed
    payload            the pickle, or the text of the error

Reading a pickle runs code of its sender's choice: the ranks of a job trust each other
(docs/security.md).
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import tensorflow as tf

# The exchange is a matter of the program, also while it builds a v1 graph.
from tensorflow.python.eager.context import eager_mode

from tfdist import ops
from tfdist.ops.collectives.calls import resolve

# What a rank that names no rank tells the others, so that all get the error.
_NO_RANK = -2


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    *,
    communicator: ops.Communicator | None = None,
    label: str = "broadcast_object",
    timeout: float | None = None,
) -> Any:
    """Gives every rank the Python object that rank `root_rank` has.

    For what is not a tensor: options, a vocabulary, the state of a data pipeline. The object
    travels as a pickle, which runs code where it is read: only among ranks that trust each other,
    see docs/security.md.

    Args:
      obj: what the root sends, anything that `pickle` can write; ignored on the other ranks.
      root_rank: whose object is taken, a rank of the communicator.
      communicator: the ranks; `None` means those of the job.
      label: how error messages call it.
      timeout: seconds; `None` means 600, 0 means for ever.

    Returns:
      On the root `obj` itself, elsewhere a copy.

    Raises:
      ValueError: on all ranks: the root cannot pickle the object, the ranks name different roots,
        or there is no such rank.
      pickle.UnpicklingError: this rank cannot read what the root sent, for instance because it
        lacks a module.
      RuntimeError: called while a `tf.function` is traced.
      tf.errors.UnavailableError: a rank died or left.
      tf.errors.DeadlineExceededError: a rank did not come in time.
      tfdist.errors.NotInitializedError: before `tfdist.init()` or a strategy.

    Example:

    ```python
    tfdist.init()
    options = read_options() if tfdist.rank() == 0 else None
    options = tfdist.broadcast_object(options)
    ```
    """
    asked = f"broadcast_object '{label}'"
    ranks = resolve(communicator, "broadcast_object")
    here = ranks.rank == root_rank
    is_rank = isinstance(root_rank, int | np.integer) and 0 <= root_rank < ranks.size
    root = int(root_rank) if is_rank else _NO_RANK
    parts = _exchange(obj, here, root, ranks, asked, label, timeout)
    if not is_rank:
        raise ValueError(
            f"{asked}: expected a root_rank from 0 to {ranks.size - 1}, received {root_rank!r}"
        )
    if here:
        return obj
    if root_rank not in parts:
        raise ValueError(f"{asked}: expected an object from rank {root_rank}, which has joined")
    return _read(parts[root_rank], root_rank, ranks, asked)


def all_gather_object(
    obj: Any,
    *,
    communicator: ops.Communicator | None = None,
    label: str = "all_gather_object",
    timeout: float | None = None,
) -> list:
    """Gives every rank the Python objects of all.

    Objects travel as pickles, among ranks that trust each other; see `broadcast_object`.

    Args:
      obj: anything that `pickle` can write; another one on each rank.
      communicator: the ranks; `None` means those of the job.
      label: how error messages call it.
      timeout: seconds; `None` means 600, 0 means for ever.

    Returns:
      The objects in rank order, each a copy, also this rank's own. Ranks that have joined are left
      out.

    Raises:
      ValueError: on all ranks: one of them cannot pickle its object, or calls another function.
      Others: as `broadcast_object`.

    Example:

    ```python
    tfdist.init()
    hosts = tfdist.all_gather_object(socket.gethostname())
    ```
    """
    asked = f"all_gather_object '{label}'"
    ranks = resolve(communicator, "all_gather_object")
    parts = _exchange(obj, True, -1, ranks, asked, label, timeout)
    return [_read(part, rank, ranks, asked) for rank, part in parts.items()]


def _exchange(
    obj: Any,
    sends: bool,
    root: int,
    ranks: ops.Communicator,
    asked: str,
    label: str,
    timeout: float | None,
) -> dict[int, bytes]:
    """Returns what every rank that has not joined sends, by rank: a pickle, or nothing."""
    if tf.inside_function():
        raise RuntimeError(
            f"{asked}: expected to be called outside of tf.function, which would send the object "
            "once, while it is traced"
        )
    problem = None
    payload = b""
    if sends:
        try:
            payload = pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # whatever the object's own methods raise
            problem = error
            payload = f"{type(error).__name__}: {error}"[:1000].encode()
    header = np.array([[ranks.rank, len(payload), root, problem is not None]], np.int64)
    with eager_mode(), tf.device("CPU:0"):
        headers, data = ops.all_gather(
            [tf.constant(header), tf.constant(np.frombuffer(payload, np.uint8))],
            ranks,
            label=label,
            timeout=timeout,
        )
        headers, data = headers.numpy().tolist(), data.numpy()
    parts, begin = {}, 0
    for rank, length, _, _ in headers:
        parts[rank] = data[begin : begin + length].tobytes()
        begin += length
    first, _, root_of_first, _ = headers[0]
    for rank, _, other, failed in headers:
        if failed:
            raise ValueError(
                f"{asked}: rank {rank} of {ranks.size} cannot pickle its object: "
                f"{parts[rank].decode(errors='replace')}"
            ) from (problem if rank == ranks.rank else None)
        if other != root_of_first:
            raise ValueError(
                f"{asked}: the ranks disagree: rank {first} {_wish(root_of_first)}, rank {rank} "
                f"{_wish(other)}"
            )
    return parts


def _wish(root: int) -> str:
    if root == _NO_RANK:
        return "names no rank"
    return "gathers an object of each" if root < 0 else f"expects that of rank {root}"


def _read(part: bytes, sender: int, ranks: ops.Communicator, asked: str) -> Any:
    try:
        return pickle.loads(part)
    except Exception as error:
        raise pickle.UnpicklingError(
            f"{asked}: rank {ranks.rank} of {ranks.size} cannot read what rank {sender} sent: "
            f"{type(error).__name__}: {error}"
        ) from error
