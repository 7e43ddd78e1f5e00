"""Process groups: communicators of some of a job's ranks.

A group has its own connections and its own thread, so that groups neither wait for nor disturb
each other. It is made over the job's communicator:

    rank 0: [0, 2]?  port 4711, salt   ┐
    rank 1: [0, 2]?                    ├─ all_gather ─> all agree; 0 and 2 connect, 1 returns
    rank 2: [0, 2]?  port 4713         ┘
"""

from __future__ import annotations

import json
import operator
import secrets
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist import ops
from tfdist.control.encoding import JsonObject

# A group is made at once, also while the program builds a graph.
from tfdist.internals.tensorflow import eager_mode
from tfdist.job import process
from tfdist.ops.collectives.calls import DEFAULT_TIMEOUT

_API_NAME = "tfdist.new_group"


def new_group(
    ranks: Iterable[int], name: str | None = None, *, timeout: float | None = None
) -> ops.Communicator | None:
    """Makes a communicator of some of the job's ranks.

    Every rank of the job makes the same calls with the same arguments, members or not, as with
    `torch.distributed.new_group`. Collectives with the group run among its members alone.

    Args:
      ranks: the members, by their rank in the job. The first becomes rank 0 of the group, the
        second rank 1, and so on.
      name: the group's name in messages.
      timeout: seconds to wait for the other ranks; `None` means 600, 0 means for ever.

    Returns:
      The group, to pass as `communicator`; `None` on other ranks. It lasts until its `close()` or
      the end of the job.

    Raises:
      ValueError: the same on every rank: a rank does not exist or is named twice, or the ranks of
        the job passed different arguments.
      tfdist.errors.NotInitializedError: before `tfdist.init()` or a strategy.
      tfdist.errors.ClusterConfigError: the job is elastic.
      tf.errors.UnavailableError: a rank died or left.
      tf.errors.DeadlineExceededError: a rank did not come in time.

    Example:

    ```python
    tfdist.init()
    even = tfdist.new_group(range(0, tfdist.size(), 2))
    if even is not None:
        total = tfdist.ops.all_reduce(tf.constant(1.0), even)
    ```
    """
    process.current.refuse_in_elastic_job("tfdist.new_group")
    all_ranks = process.communicator(_API_NAME)
    listed = list(ranks)
    problem = _problem(listed, all_ranks.size)
    group = None
    answer: JsonObject = {"ranks": [str(rank) for rank in listed], "name": name}
    if problem is None and all_ranks.rank in listed:
        try:
            group = _new_communicator(listed.index(all_ranks.rank), len(listed))
            answer["address"] = f"{_host()}:{group.port}"
            answer["salt"] = secrets.token_hex(16)
        except tf.errors.OpError as error:
            problem = error.message
    answer["problem"] = problem
    try:
        answers = _exchange(answer, all_ranks, name, timeout)
        _check_agreement(answers)
        if group is not None:
            _connect(group, [answers[rank] for rank in listed], timeout)
    except BaseException:
        if group is not None:
            group.close()
        raise
    if group is not None and process.current.job is not None:
        process.current.job.adopt(group)
    return group


def _new_communicator(rank: int, size: int) -> ops.Communicator:
    job = process.current.job
    return ops.Communicator(rank, size) if job is None else job.new_communicator(rank, size)


def _problem(ranks: list[Any], size: int) -> str | None:
    """Returns the error in a list of ranks, or None."""
    if not ranks:
        return "expected at least one rank, received none"
    seen = set()
    for rank in ranks:
        try:
            operator.index(rank)
        except TypeError:
            return f"expected numbers of ranks, received {rank!r}"
        if not 0 <= rank < size:
            return f"expected ranks from 0 to {size - 1}, received {rank}"
        if rank in seen:
            return f"expected every rank once, received {rank} twice"
        seen.add(rank)
    return None


def _host() -> str:
    job = process.current.job
    return "localhost" if job is None else job.data_host


def _exchange(
    answer: JsonObject, all_ranks: ops.Communicator, name: str | None, timeout: float | None
) -> list[JsonObject]:
    """Returns the answers of all ranks of the job."""
    label = "new_group" if name is None else f"new_group {name}"
    with eager_mode(), tf.device("CPU:0"):
        texts = ops.all_gather(
            tf.constant([json.dumps(answer)]), all_ranks, label=label, timeout=timeout
        )
        return [json.loads(text) for text in texts.numpy()]


def _check_agreement(answers: list[JsonObject]) -> None:
    for rank, answer in enumerate(answers):
        if answer["problem"] is not None:
            raise ValueError(f"{_API_NAME}: rank {rank}: {answer['problem']}")

    def request(answer):
        ranks = f"[{', '.join(answer['ranks'])}]"
        return ranks if answer["name"] is None else f"{ranks} named '{answer['name']}'"

    for rank, answer in enumerate(answers):
        if request(answer) != request(answers[0]):
            raise ValueError(
                f"{_API_NAME}: the ranks disagree: rank 0 asks for {request(answers[0])}, "
                f"rank {rank} for {request(answer)}"
            )


def _connect(group: ops.Communicator, members: list[JsonObject], timeout: float | None) -> None:
    if group.size == 1:
        return
    forever = 10.0**9
    seconds = DEFAULT_TIMEOUT if timeout is None else timeout or forever
    addresses = [member["address"] for member in members]
    # A key for each group, so that no member can connect to another group.
    job = process.current.job
    assert job is not None  # there are several ranks
    key = job.key_of_group(members[0]["salt"])
    group.connect(key, 0, addresses, seconds)
