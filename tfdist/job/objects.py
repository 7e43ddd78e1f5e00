"""Exchange of Python objects between ranks, as pickles.

All ranks contribute to one all-gather; ranks that send nothing contribute an empty part. The header
has every rank's root and whether its object could be pickled, so that all ranks succeed or raise
the same error.

    header of a rank   rank | bytes | root (-1: none) | whether pickling failed
    payload            the pickle, or the text of the error

A pickle runs code of its sender when it is read: the ranks of a job must trust each other
(docs/operate/security.md).
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import ops

# The exchange takes place at once, also while the program builds a TensorFlow 1 graph.
from tfdist.internals.tensorflow import eager_mode
from tfdist.ops.collectives.calls import resolve

# The root of a rank whose argument is no rank, so that all ranks get the error.
_INVALID_ROOT = -2


def broadcast_object(
    obj: object = None,
    root_rank: int = 0,
    *,
    communicator: ops.Communicator | None = None,
    label: str = "broadcast_object",
    timeout: float | None = None,
) -> Any:
    """Sends the Python object of rank `root_rank` to all ranks.

    It is meant for objects that are no tensors: options, a vocabulary, the state of a data
    pipeline. The object is sent as a pickle, which runs code where it is read: use it only among
    ranks that trust each other, see docs/operate/security.md.

    Args:
      obj: the root's object, which `pickle` must support; ignored on the other ranks.
      root_rank: the sender, a rank of the communicator.
      communicator: the ranks; `None` means the job's ranks.
      label: the name of the call in error messages.
      timeout: seconds; `None` means 600, 0 means for ever.

    Returns:
      On the root `obj` itself, on other ranks a copy.

    Raises:
      ValueError: on all ranks: the root cannot pickle the object, the ranks name different roots,
        or the root does not exist.
      pickle.UnpicklingError: this rank cannot read the root's pickle, for instance because a
        module is missing.
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
    api_name = f"broadcast_object '{label}'"
    ranks = resolve(communicator, "broadcast_object")
    is_root = ranks.rank == root_rank
    is_rank = isinstance(root_rank, int | np.integer) and 0 <= root_rank < ranks.size
    root = int(root_rank) if is_rank else _INVALID_ROOT
    parts = _exchange(obj, is_root, root, ranks, api_name, label, timeout)
    if not is_rank:
        raise ValueError(
            f"{api_name}: expected a root_rank from 0 to {ranks.size - 1}, received {root_rank!r}"
        )
    if is_root:
        return obj
    if root_rank not in parts:
        raise ValueError(f"{api_name}: expected an object from rank {root_rank}, which has joined")
    return _read(parts[root_rank], root_rank, ranks, api_name)


def all_gather_object(
    obj: object,
    *,
    communicator: ops.Communicator | None = None,
    label: str = "all_gather_object",
    timeout: float | None = None,
) -> list:
    """Sends the Python objects of all ranks to all ranks.

    Objects are sent as pickles, among ranks that trust each other; see `broadcast_object`.

    Args:
      obj: this rank's object, which `pickle` must support.
      communicator: the ranks; `None` means the job's ranks.
      label: the name of the call in error messages.
      timeout: seconds; `None` means 600, 0 means for ever.

    Returns:
      The objects in rank order, each a copy, also this rank's own; without objects of ranks that
      have called `join`.

    Raises:
      ValueError: on all ranks: a rank cannot pickle its object, or calls another function.
      Exception: as for `broadcast_object`.

    Example:

    ```python
    tfdist.init()
    hosts = tfdist.all_gather_object(socket.gethostname())
    ```
    """
    api_name = f"all_gather_object '{label}'"
    ranks = resolve(communicator, "all_gather_object")
    parts = _exchange(obj, True, -1, ranks, api_name, label, timeout)
    return [_read(part, rank, ranks, api_name) for rank, part in parts.items()]


def _exchange(
    obj: object,
    sends: bool,
    root: int,
    ranks: ops.Communicator,
    api_name: str,
    label: str,
    timeout: float | None,
) -> dict[int, bytes]:
    """Returns, by rank, the pickles of all ranks that have not called `join`; some are empty."""
    # The graph of a tf_keras model stays the default one where its layers run eagerly.
    if tf.inside_function() and not tf.executing_eagerly():
        raise RuntimeError(
            f"{api_name}: expected to be called outside of tf.function, which would send the "
            "object once, while it is traced"
        )
    problem = None
    payload = b""
    if sends:
        try:
            payload = pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # the object's own methods may raise any type
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
                f"{api_name}: rank {rank} of {ranks.size} cannot pickle its object: "
                f"{parts[rank].decode(errors='replace')}"
            ) from (problem if rank == ranks.rank else None)
        if other != root_of_first:
            raise ValueError(
                f"{api_name}: the ranks disagree: rank {first} {_request_text(root_of_first)}, "
                f"rank {rank} {_request_text(other)}"
            )
    return parts


def _request_text(root: int) -> str:
    if root == _INVALID_ROOT:
        return "names no rank"
    return "gathers an object of each" if root < 0 else f"expects the object of rank {root}"


def _read(part: bytes, sender: int, ranks: ops.Communicator, api_name: str) -> Any:
    try:
        return pickle.loads(part)
    except Exception as error:
        raise pickle.UnpicklingError(
            f"{api_name}: rank {ranks.rank} of {ranks.size} cannot read what rank {sender} sent: "
            f"{type(error).__name__}: {error}"
        ) from error
