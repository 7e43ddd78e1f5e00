"""How many orders the shuffles of a dataset have drawn, and how they continue from there.

A `shuffle` that reshuffles has a seed generator. Each new iterator takes the next seeds from it:

    rows = dataset.shuffle(100, seed=1)
    train, test = rows.take(80), rows.skip(80)    # one generator, which both branches advance
    iter(train); iter(test); iter(train)          # orders 1, 2 and 3

So the order of an epoch depends on all that was read before: earlier calls of `fit`, validations,
`evaluate`. TensorFlow does not tell how often a generator was used. But the saved state of an
iterator has this number, and restoring a state sets it. A *probe* is an iterator that is saved and
restored, and never read. It is one of an empty `shuffle` with the generator of the user's shuffle.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import tensorflow as tf
from tensorflow.core.framework.dataset_pb2 import CompressedElement
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.tensor_pb2 import TensorProto, VariantTensorDataProto
from tensorflow.core.framework.types_pb2 import DT_VARIANT

from tfdist.data.order import reshuffling_parts

_ATTRIBUTE = "tfdist_seed_generator"
_COUNT = "epoch_num_random_samples"  # the key of the number in a saved state
_SEEDS_OF_DRAW = 2
_IGNORE_STATE = 1  # tf.data's ExternalStatePolicy, for ops: functions may have state
# A dataset's graph has its arrays. From this number of bytes on, which is near the limit of graphs,
# a probe is opened without it, and saves the shuffle's buffer once.
_MAX_ARRAYS = 1 << 30


class Drawing(Protocol):
    """Draws an order for each epoch or iterator: a `SeedGenerator`, or the like of other data."""

    @property
    def draws(self) -> int:
        """How often it has drawn in this process."""

    def go_to(self, draws: int) -> None:
        """Sets how often it has drawn."""

    def why_not(self, draws: int) -> str | None:
        """Why it cannot go to a number of draws; `None` if it can."""


class SeedGenerator:
    """The generator of a part of a dataset that has another order in each iterator.

    Args:
      part: that part, a `shuffle` or a `Dataset.random`.

    Attributes:
      handle: its resource, with which another shuffle draws the same orders in turn; `None` if it
        is unknown.
    """

    def __init__(self, part: tf.data.Dataset) -> None:
        is_shuffle = type(part).__name__ == "_ShuffleDataset"
        is_small = is_shuffle and _bytes_of_arrays(part) <= _MAX_ARRAYS
        self.handle = handle = _handle(part) if is_small else None
        self._probe = _Probe(part if handle is None else _shuffle_of_nothing(handle))
        # Any shuffle accepts the state of the smallest one. Its own would have its whole buffer.
        self._state = _state_of_shuffle() if is_shuffle else self._probe.save()
        self.go_to(self._probe.save().count // _SEEDS_OF_DRAW - 1)

    @property
    def draws(self) -> int:
        """How many iterators have drawn their seeds."""
        return self._probe.save().count // _SEEDS_OF_DRAW

    def go_to(self, draws: int) -> None:
        """Makes the next iterator's draw number `draws` + 1."""
        self._probe.restore(self._state.with_count(draws * _SEEDS_OF_DRAW))

    def draw(self) -> None:
        """Draws as an iterator that is made."""
        if self.handle is None:
            self.go_to(self.draws + 1)
        else:
            self._probe.open()

    def why_not(self, draws: int) -> str | None:
        """Nothing: it can go to any number of draws."""
        return None


def generators(datasets: Iterable[object]) -> list[SeedGenerator]:
    """Returns the seed generators of datasets, each once.

    Args:
      datasets: `tf.data.Dataset`s; other data has no generators.

    Returns:
      In an order that is the same in all processes that run the same program.
    """
    found: dict[int, SeedGenerator] = {}
    for dataset in datasets:
        if isinstance(dataset, tf.data.Dataset):
            found |= {id(part): _generator(part) for part, _ in reshuffling_parts(dataset)}
    return list(found.values())


def generators_of_opening(dataset: object) -> list[SeedGenerator]:
    """Returns those generators of a dataset that draw when an iterator is made, and only then."""
    if not isinstance(dataset, tf.data.Dataset):
        return []
    parts = list(reshuffling_parts(dataset))
    later = [_generator(part) for part, at_once in parts if not at_once]
    found = dict.fromkeys(_generator(part) for part, at_once in parts if at_once)
    return [generator for generator in found if generator not in later]


def generators_drawn_later(datasets: Sequence[object]) -> list[SeedGenerator]:
    """Returns the seed generators of datasets that also draw while data is read.

    How many orders they have drawn after an epoch that ends before their data does depends on how
    far TensorFlow has read ahead, so processes differ:

        rows.shuffle(100, seed=1).repeat().map(parse).batch(8).take(50)
    """
    at_once = [each for dataset in datasets for each in generators_of_opening(dataset)]
    return [each for each in generators(datasets) if each not in at_once]


def draw_for_opening(dataset: tf.data.Dataset) -> None:
    """Draws what an iterator of a dataset draws when it is made, without making it.

    Args:
      dataset: of which an iterator `order.only_draws_when_opened`.
    """
    for part, _ in reshuffling_parts(dataset):
        _generator(part).draw()


def handle_of(shuffle: tf.data.Dataset) -> tf.Tensor | None:
    """Returns the resource of a shuffle's seed generator, or `None` if it is unknown."""
    return _generator(shuffle).handle


def drawn(datasets: Iterable[object]) -> list[int]:
    """Returns how many orders the shuffles of datasets have drawn in this process.

    Args:
      datasets: `tf.data.Dataset`s; other data has no shuffles.

    Returns:
      A number for each seed generator, as `generators` lists them; for `go_to` in another process.
    """
    return [generator.draws for generator in generators(datasets)]


def go_to(datasets: Iterable[object], draws: Sequence[int]) -> list[str]:
    """Sets the shuffles of datasets to where they are in another process.

    The next iterators have the orders that they would have there. So a process can leave out a
    `fit`, `evaluate` or `predict`, and can go back to an earlier order.

    Args:
      datasets: as they were given to `drawn` there.
      draws: the result of `drawn` there.

    Returns:
      Why the orders will be others, in plain words; none if they are the same.
    """
    own = generators(datasets)
    if len(own) != len(draws):
        return [f"its datasets have {len(own)} shuffles that draw orders, and had {len(draws)}"]
    for generator, count in zip(own, draws, strict=True):
        if generator.draws != count:
            generator.go_to(count)
    return []


@contextlib.contextmanager
def unchanged(*datasets: object) -> Iterator[None]:
    """Sets the shuffles of datasets back when the `with` block ends."""
    before = drawn(datasets)
    try:
        yield
    finally:
        go_to(datasets, before)


def _generator(part: tf.data.Dataset) -> SeedGenerator:
    found = vars(part).get(_ATTRIBUTE)
    if found is None:
        with tf.init_scope(), tf.device("/device:CPU:0"):
            found = SeedGenerator(part)
        setattr(part, _ATTRIBUTE, found)
    return found


class _Probe:
    """An iterator that is saved and restored, and never read.

    Args:
      dataset: the dataset that it iterates over.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        # An iterator needs its dataset.
        self._dataset = dataset.with_options(options)
        self._iterator = tf.raw_ops.AnonymousIteratorV3(
            output_types=self._dataset._flat_types, output_shapes=self._dataset._flat_shapes
        )
        self.open()

    def open(self) -> None:
        with tf.init_scope(), tf.device("/device:CPU:0"):
            tf.raw_ops.MakeIterator(dataset=self._dataset._variant_tensor, iterator=self._iterator)

    def save(self) -> _State:
        with tf.init_scope(), tf.device("/device:CPU:0"):
            return _State.of(
                tf.raw_ops.SerializeIterator(
                    resource_handle=self._iterator, external_state_policy=_IGNORE_STATE
                )
            )

    def restore(self, state: tf.Tensor) -> None:
        with tf.init_scope(), tf.device("/device:CPU:0"):
            tf.raw_ops.DeserializeIterator(resource_handle=self._iterator, serialized=state)


class _State:
    """The saved state of an iterator: maps, each from keys to values.

    Args:
      maps: messages with the joined keys, and tensors with the values.
    """

    def __init__(self, maps: list[VariantTensorDataProto]) -> None:
        self._maps = maps

    @classmethod
    def of(cls, saved: tf.Tensor) -> _State:
        """Reads what SerializeIterator returned, as far as the map with the number of draws."""
        return cls([_uncompressed(_message(each)) for each in saved])

    @property
    def count(self) -> int:
        """The number of seeds that the generator has given."""
        at, index = self._count_at
        return int(tf.make_ndarray(self._maps[at].tensors[index]))

    def with_count(self, count: int) -> tf.Tensor:
        """Returns what DeserializeIterator takes, with another number."""
        at, index = self._count_at
        maps = list(self._maps)
        maps[at] = VariantTensorDataProto()
        maps[at].CopyFrom(self._maps[at])
        maps[at].tensors[index].CopyFrom(tf.make_tensor_proto(count, tf.int64))
        vector = TensorProto(dtype=DT_VARIANT, variant_val=maps)
        vector.tensor_shape.dim.add(size=len(maps))
        return tf.io.parse_tensor(vector.SerializeToString(), tf.variant)

    @property
    def _count_at(self) -> tuple[int, int]:
        for at, each in enumerate(self._maps):
            _, *keys = each.metadata.decode().split("@@")
            for index, key in enumerate(keys):
                if key.endswith(_COUNT):
                    return at, index
        raise ValueError(f"the state of a tf.data iterator: expected a key {_COUNT}")


def _message(variant: tf.Tensor) -> VariantTensorDataProto:
    """Reads a scalar of dtype variant: the length of a message in 7-bit groups, and the message."""
    content = TensorProto.FromString(tf.io.serialize_tensor(variant).numpy()).tensor_content
    start = next(i for i, byte in enumerate(content) if byte < 128) + 1
    return VariantTensorDataProto.FromString(content[start:])


def _uncompressed(found: VariantTensorDataProto) -> VariantTensorDataProto:
    """TensorFlow compresses the values into one tensor, and reads both forms."""
    if [tensor.dtype for tensor in found.tensors] != [DT_VARIANT]:
        return found
    (packed,) = found.tensors
    about = CompressedElement.FromString(packed.variant_val[0].metadata).component_metadata
    values = tf.raw_ops.UncompressElement(
        compressed=tf.io.parse_tensor(packed.SerializeToString(), tf.variant),
        output_types=[tf.as_dtype(each.dtype) for each in about],
        output_shapes=[tf.TensorShape(each.tensor_shape) for each in about],
    )
    return VariantTensorDataProto(
        type_name=found.type_name,
        metadata=found.metadata,
        tensors=[tf.make_tensor_proto(value.numpy(), value.dtype) for value in values],
    )


def _handle(shuffle: tf.data.Dataset) -> tf.Tensor | None:
    """The resource of the generator of a shuffle, which the dataset's graph has as a constant."""
    try:
        text = tf.raw_ops.DatasetToGraphV2(
            input_dataset=shuffle._variant_tensor, external_state_policy=_IGNORE_STATE
        )
    except tf.errors.OpError:  # a part of it has no graph
        return None
    nodes = {node.name: node for node in GraphDef.FromString(text.numpy()).node}
    (end,) = (node for node in nodes.values() if node.op == "_Retval")
    part = nodes[end.input[0]]
    if part.op != "ShuffleDatasetV3":  # of TensorFlow 1, which has no resource
        return None
    generator = nodes[part.input[-1]]
    return tf.io.parse_tensor(generator.attr["value"].tensor.SerializeToString(), tf.resource)


def _shuffle_of_nothing(generator: tf.Tensor) -> tf.data.Dataset:
    nothing = tf.data.Dataset.range(0)
    variant = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=nothing._variant_tensor,
        buffer_size=tf.constant(1, tf.int64),
        seed=tf.constant(1, tf.int64),
        seed2=tf.constant(1, tf.int64),
        seed_generator=generator,
        reshuffle_each_iteration=True,
        output_types=[tf.int64],
        output_shapes=[tf.TensorShape([])],
    )
    return tf.data.experimental.from_variant(variant, nothing.element_spec)


@functools.cache
def _state_of_shuffle() -> _State:
    return _Probe(tf.data.Dataset.range(0).shuffle(1, seed=1)).save()


def _bytes_of_arrays(dataset: tf.data.Dataset) -> int:
    own = sum(
        tensor.dtype.size * (tensor.shape.num_elements() or 0)
        for tensor in getattr(dataset, "_tensors", ())
        if isinstance(tensor, tf.Tensor)
    )
    return own + sum(map(_bytes_of_arrays, dataset._inputs()))
