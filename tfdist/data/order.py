"""What a dataset's parts tell of its order: is it the same when the program is started again?"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator

import tensorflow as tf

_log = logging.getLogger("tfdist")

_AUTO = tf.data.experimental.AutoShardPolicy.AUTO
_TOLD = "tfdist_told_of_files"
_TOLD_OF_ORDERS = "tfdist_told_of_orders"
# Classes by their names, which TensorFlow does not export, and where an iterator of each opens what
# it reads: these at a later time than their own opening, or not each time.
_OPENS_LATER = {
    "_RepeatDataset": "repeat",
    "_ConcatenateDataset": "concatenate",
    "CacheDataset": "cache",
    "_SnapshotDataset": "snapshot",
}
# Of these, what gives later iterators the order of an earlier one.
_KEEPS_ELEMENTS = ("cache", "snapshot")
_DRAW_ORDERS = ("_ShuffleDataset", "_RandomDataset")
_READERS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset", "CsvDataset")
# Modules whose datasets do nothing else when they are opened than to open what they read.
_KNOWN = ("tensorflow.python.data.ops.", "tfdist.data.cut.")
# Ops in the functions of datasets.
_READER_OPS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset", "CSVDataset")
_NOISE_OPS = (
    "RandomUniform",
    "RandomStandardNormal",
    "TruncatedNormal",
    "RandomShuffle",
    "RandomGamma",
    "Multinomial",
)


def unknown_order(
    dataset: tf.data.Dataset, opening: int, draws_are_known: bool = False
) -> list[str]:
    """Why rows have another order when the program is started again.

    Args:
      dataset: the dataset.
      opening: the number of the opening whose order is wanted, from 1.
      draws_are_known: whether it is known how many orders its shuffles had drawn before.

    Returns:
      Reasons in plain words; none if the order is the same, as far as the dataset tells.
    """
    return list(dict.fromkeys(reason for reason, _ in _reasons(dataset, opening, draws_are_known)))


def order_of_each_process(dataset: tf.data.Dataset) -> list[str]:
    """Why processes that run the same program read rows in different orders.

    Python generators, and functions that draw random numbers, are not among the reasons.

    Args:
      dataset: the dataset.

    Returns:
      Reasons in plain words; none if the order is the same, as far as the dataset tells.
    """
    found = (reason for reason, is_of_rows in _reasons(dataset, 1, False) if is_of_rows)
    return list(dict.fromkeys(found))


def _reasons(
    dataset: tf.data.Dataset, opening: int, draws_are_known: bool
) -> Iterator[tuple[str, bool]]:
    """Why an order is unknown, each with whether it surely differs between processes."""
    if dataset.options().deterministic is False:
        yield "options().deterministic is False, so elements overtake each other", True
    for node, later in _nodes(dataset):
        kind = type(node).__name__
        if kind == "_ShuffleDataset":
            if _is_unseeded(node):
                yield "shuffle has no seed", True
            elif (
                node._reshuffle_each_iteration
                and (later in _KEEPS_ELEMENTS if draws_are_known else later)
                and opening > 1
            ):
                yield f"{later} comes after shuffle in a dataset that is opened again", False
        elif kind == "_RandomDataset" and _is_unseeded(node):
            yield "elements are chosen at random, as by sample_from_datasets, with no seed", True
        elif kind == "_GeneratorDataset" or _runs(node, ("GeneratorDataset",)):
            yield "a Python generator yields elements", False
        elif kind.startswith("_DataServiceDataset"):
            yield "a tf.data service deals out elements", True
        if getattr(node, "_deterministic", None) == "false":
            yield "deterministic=False lets elements overtake each other", True
        if _runs(node, _NOISE_OPS):
            yield "a function of the dataset draws random numbers", False


def fingerprint_of_seeds(datasets: Iterable[tf.data.Dataset]) -> bytes:
    """Returns 8 bytes that are equal in processes whose shuffles have equal seeds, or none.

    Args:
      datasets: as many, and made by the same program, in each process.
    """
    seeds = []
    for dataset in datasets:
        for node, _ in _nodes(dataset):
            if type(node).__name__ not in _DRAW_ORDERS:
                continue
            seeds.append([int(tf.get_static_value(seed)) for seed in (node._seed, node._seed2)])
    return hashlib.blake2b(repr(seeds).encode(), digest_size=8).digest()


def shuffles(dataset: tf.data.Dataset) -> bool:
    """Whether the order of a dataset depends on seeds."""
    return any(type(node).__name__ in _DRAW_ORDERS for node, _ in _nodes(dataset))


def reshuffles(dataset: tf.data.Dataset) -> bool:
    """Whether a dataset has another order each time that it is opened."""
    return any(_reshuffles(node) for node, _ in _nodes(dataset))


def reshuffling_parts(
    dataset: tf.data.Dataset, at_once: bool = True
) -> Iterator[tuple[tf.data.Dataset, bool]]:
    """The parts of a dataset that draw another order each time that they are opened.

    Args:
      dataset: the dataset.
      at_once: whether it is opened when an iterator is made, and only then.

    Returns:
      Each part, as often as it is read, and whether it draws its order when an iterator of the
      dataset is made, and only then.
    """
    if _reshuffles(dataset):
        yield dataset, at_once
    kind = type(dataset).__name__
    for index, below in enumerate(dataset._inputs()):
        is_opened_later = kind == "_ShuffleDataset" or _opener(dataset, index)
        yield from reshuffling_parts(below, at_once and not is_opened_later)


def opens_at_first_element(dataset: tf.data.Dataset) -> bool:
    """Whether a part that reshuffles draws its order when the first element is read, not before.

    A shuffle opens what is below it only then.
    """
    return any(
        type(node).__name__ == "_ShuffleDataset" and reshuffles(node._input_dataset)
        for node, _ in _nodes(dataset)
    )


def only_draws_when_opened(dataset: tf.data.Dataset) -> bool:
    """Whether each iterator draws the orders of shuffles when it is made, and does nothing else."""
    are_drawn_at_once = all(at_once for _, at_once in reshuffling_parts(dataset))
    return (
        are_drawn_at_once
        and not dataset.options().experimental_warm_start
        and all(
            type(node).__module__.startswith(_KNOWN)
            and not type(node).__name__.startswith(("_DataService", "_RandomDataset", "_Snapshot"))
            for node, _ in _nodes(dataset)
        )
    )


def reads_files(dataset: tf.data.Dataset) -> bool:
    """Whether TensorFlow would give each worker files of its own."""
    return any(
        any(name in type(node).__name__ for name in _READERS) or _runs(node, _READER_OPS)
        for node, _ in _nodes(dataset)
    )


def splits_batches(dataset: tf.data.Dataset) -> bool:
    """Whether the workers of an all-reduce job split each batch of a dataset between them.

    Else its options, or TensorFlow, give them batches or files of their own.

    Args:
      dataset: before it is distributed.
    """
    policy = dataset.options().experimental_distribute.auto_shard_policy
    policies = tf.data.experimental.AutoShardPolicy
    return policy == policies.DATA or (policy == policies.AUTO and not reads_files(dataset))


def tell_of_files(dataset: tf.data.Dataset, rank: int) -> None:
    """Warns once, on rank 0, if TensorFlow gives workers files of their own unasked.

    Args:
      dataset: before it is distributed; the workers do not split its batches.
      rank: this worker's rank.
    """
    is_asked = dataset.options().experimental_distribute.auto_shard_policy != _AUTO
    if rank or is_asked or getattr(dataset, _TOLD, False):
        return
    setattr(dataset, _TOLD, True)
    _log.warning(
        "input: batches are other ones than one process's: TensorFlow gives each worker files of "
        "its own (AutoShardPolicy.AUTO), if there are as many files as workers. With "
        "AutoShardPolicy.DATA all workers read all files, and batches are one process's; with "
        "AutoShardPolicy.FILE this is not said"
    )


def tell_of_unseeded(dataset: tf.data.Dataset, rank: int) -> None:
    """Warns once, on rank 0, of shuffles without a seed in data whose batches workers share.

    Args:
      dataset: before it is distributed.
      rank: this worker's rank.
    """
    if rank or getattr(dataset, _TOLD_OF_ORDERS, False):
        return
    draw = [node for node, _ in _nodes(dataset) if type(node).__name__ in _DRAW_ORDERS]
    if any(map(_is_unseeded, draw)):
        setattr(dataset, _TOLD_OF_ORDERS, True)
        tell_of_other_orders()


def tell_of_other_orders() -> None:
    """Warns of shuffles whose orders differ between workers that share batches."""
    _log.warning(
        "input: each worker takes its share of the same batches, but shuffles have other seeds on "
        "other workers: some rows come to several workers, and others to none. Call "
        "keras.utils.set_random_seed with one number on all workers, or give a seed to each "
        "shuffle and to functions that shuffle, such as image_dataset_from_directory"
    )


def _nodes(dataset: tf.data.Dataset, later: str = "") -> Iterator[tuple[tf.data.Dataset, str]]:
    """All datasets of a pipeline, each with the one after it, if any, that opens it later."""
    yield dataset, later
    for index, below in enumerate(dataset._inputs()):
        yield from _nodes(below, later or _opener(dataset, index))


def _opener(dataset: tf.data.Dataset, index: int) -> str:
    """The kind of a dataset, if it opens its input number `index` later than itself; else empty."""
    kind = type(dataset).__name__
    is_opened_at_once = kind == "_ConcatenateDataset" and index == 0
    return "" if is_opened_at_once else _OPENS_LATER.get(kind, "")


def _reshuffles(node: tf.data.Dataset) -> bool:
    return bool(
        getattr(node, "_reshuffle_each_iteration", False) or getattr(node, "_rerandomize", False)
    )


def _is_unseeded(node: tf.data.Dataset) -> bool:
    # Two zeros make TensorFlow draw seeds at random. In a graph they are constants.
    return not any(tf.get_static_value(seed) for seed in (node._seed, node._seed2))


def _runs(node: tf.data.Dataset, ops: tuple[str, ...]) -> bool:
    """Whether a function of a dataset runs one of some ops, itself or in a function it calls."""
    for function in node._functions():
        definition = function.function.graph.as_graph_def()
        bodies = [definition.node, *(f.node_def for f in definition.library.function)]
        # The names of ops end in versions.
        if any(op.op.startswith(ops) for body in bodies for op in body):
            return True
    return False
