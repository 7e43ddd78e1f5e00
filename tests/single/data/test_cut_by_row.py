"""Maps over batches are cut if their graphs tell that they treat each row by itself."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.training.pipelines import Dataset, assert_same_shares
from tfdist.data.cut.by_row import first_op_over_rows
from tfdist.data.cut.plan import plan_of
from tfdist.data.cut.share import own_rows

ROWS = 33
IMAGES = np.random.default_rng(0).integers(0, 256, (ROWS, 6, 8, 3)).astype(np.uint8)
LABELS = np.arange(ROWS) % 5
TABLE = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(np.arange(4), np.arange(4) * 7), default_value=-1
)
WEIGHTS = tf.constant(np.random.default_rng(1).normal(size=(5, 3)))
PADDED = tf.constant([[0, 0], [1, 2], [0, 0], [0, 0]])


def batches(size: int = 8, drop: bool = False) -> Dataset:
    return Dataset.from_tensor_slices((IMAGES, LABELS)).batch(size, drop)


def of_images(call):
    return lambda images, labels: (call(images), labels)


def of_labels(call):
    return lambda images, labels: (images, call(labels))


def parsed(features):
    examples = [
        tf.train.Example(
            features=tf.train.Features(
                feature={"a": tf.train.Feature(int64_list=tf.train.Int64List(value=[i, i + 1]))}
            )
        ).SerializeToString()
        for i in range(ROWS)
    ]
    return (
        Dataset.from_tensor_slices(examples)
        .batch(8)
        .map(lambda batch: tf.io.parse_example(batch, features))
    )


NORMALIZATION = keras.layers.Normalization(mean=[1.0, 2, 3], variance=[4.0, 1, 1])
NORMALIZATION.build(IMAGES.shape)  # a map would keep a tensor of its graph
BY_ROW = {
    "cast and divide": of_images(lambda x: tf.cast(x, tf.float32) / 255.0),
    "another type": lambda x, y: {"image": x[..., :1], "label": y[:, None]},
    "a tf.function": tf.function(of_images(lambda x: tf.cast(x, tf.float32) - [1.0, 2.0, 3.0])),
    "flatten by the number of rows": of_images(lambda x: tf.reshape(x, [tf.shape(x)[0], -1])),
    "flatten": of_images(lambda x: tf.reshape(x, [-1, 6 * 8 * 3])),
    "resize": of_images(lambda x: tf.image.resize(x, (4, 5))),
    "crop to a box": of_images(lambda x: tf.image.crop_to_bounding_box(x, 1, 1, 3, 4)),
    "crop": of_images(lambda x: tf.image.central_crop(x, 0.5)),
    "flip": of_images(tf.image.flip_left_right),
    "pad": of_images(lambda x: tf.pad(x, PADDED)),
    "tile, stack, concat": of_images(
        lambda x: tf.concat([tf.stack([x, x], 2)[:, :, 0], tf.tile(x, [1, 2, 1, 1])], 1)
    ),
    "transpose": of_images(lambda x: tf.transpose(x, [0, 3, 1, 2])),
    "split": of_images(lambda x: (tf.split(x, 2, 1)[1], *tf.unstack(x, axis=-1))),
    "one-hot": of_labels(lambda y: tf.one_hot(y, 5)),
    "greatest": of_images(lambda x: tf.reduce_max(x, [1, 2])),
    "greatest values": of_images(lambda x: tf.math.top_k(tf.cast(x, tf.int32), 2).values),
    "patches": of_images(
        lambda x: tf.image.extract_patches(x, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID")
    ),
    "blocks": of_images(lambda x: tf.nn.space_to_depth(x, 2)),
    "bias": of_images(lambda x: tf.nn.bias_add(tf.cast(x, tf.float32), [1.0, 2.0, 3.0])),
    "ResNet50": of_images(
        lambda x: keras.applications.resnet50.preprocess_input(tf.cast(x, tf.float32))
    ),
    "crop or pad": of_images(lambda x: tf.image.resize_with_crop_or_pad(x, 4, 9)),
    "turn": of_images(tf.image.rot90),
    "roll": of_images(lambda x: tf.roll(x, [1, 2], [1, 2])),
    "parts of each row": lambda x, y: (tf.gather(x, y[:, None] % [3, 2], batch_dims=1), y),
    "sums of integers along a row": of_images(lambda x: tf.cumsum(tf.cast(x, tf.int32), 1)),
    "sum of integers": of_images(lambda x: tf.reduce_sum(tf.cast(x, tf.int32), -1)),
    "table": of_labels(TABLE.lookup),
    "rows of a table": of_labels(lambda y: tf.gather(WEIGHTS, y)),
    "lines": of_labels(
        lambda y: tuple(tf.io.decode_csv(tf.strings.as_string(y) + ",1.5", [0, 0.0]))
    ),
    "parts of texts": of_labels(lambda y: tf.strings.substr(tf.strings.as_string(y), 0, 1)),
    "texts": of_labels(lambda y: tf.strings.to_hash_bucket_fast(tf.strings.as_string(y), 7)),
    "comparison": lambda x, y: (tf.where(x > 128, x, 0), y, tf.cast(y == 0, tf.float32)),
    "Rescaling": of_images(keras.layers.Rescaling(1 / 255)),
    "Resizing": of_images(keras.layers.Resizing(4, 4)),
    "CenterCrop": of_images(keras.layers.CenterCrop(4, 4)),
    "Normalization": of_images(NORMALIZATION),
    "CategoryEncoding": of_labels(keras.layers.CategoryEncoding(5, output_mode="one_hot")),
    "IntegerLookup": of_labels(keras.layers.IntegerLookup(vocabulary=[3, 1])),
    "Hashing": of_labels(keras.layers.Hashing(7)),
    "Discretization": of_labels(keras.layers.Discretization([1.0, 3.0])),
}


@pytest.mark.long(
    usual=(
        "flatten by the number of rows",
        "a tf.function",
        "crop",
        "resize",
        "texts",
        "Normalization",
        "IntegerLookup",
        "one-hot",
    ),
    covered_by="the other cases",
)
@pytest.mark.parametrize("name", BY_ROW)
def test_rows_by_themselves(name):
    assert_same_shares(lambda: batches().map(BY_ROW[name]), 2)


FLOATS = np.random.default_rng(2).normal(size=(ROWS, 37)).astype(np.float32)


def negated(image, label):
    return image, not (label > 3)


def with_a_static_shape(image, label):
    image.set_shape([8, 6, 8, 3])
    return image, label


def counted(image, label):
    total = label * 0
    for i in tf.range(2):
        total += label + tf.cast(i, label.dtype)
    return image, total


# Of batches of 8 rows, whose number is a constant of the graphs.
OF_KNOWN_ROWS = {
    "three maps": lambda data: (
        data.map(BY_ROW["Resizing"]).map(BY_ROW["one-hot"]).map(BY_ROW["a tf.function"])
    ),
    "the number of rows": lambda data: data.map(
        of_labels(lambda y: y * y.shape[0] + tf.shape(y, tf.int64)[0])
    ),
    "a branch": lambda data: data.map(of_labels(lambda y: y + 1 if y.shape[0] == 8 else y)),
    "a signature": lambda data: data.map(
        tf.function(
            lambda x, y: (x, y + 1),
            input_signature=[
                tf.TensorSpec([8, 6, 8, 3], tf.uint8),
                tf.TensorSpec([8], tf.int64),
            ],
        )
    ),
    "a static shape": lambda data: data.map(with_a_static_shape),
    "AutoGraph": lambda data: data.map(negated),
    "AutoGraph, declared": lambda data: tfdist.data.per_row(data.map(counted)),
}


@pytest.mark.parametrize("name", OF_KNOWN_ROWS)
def test_batches_of_a_known_number_of_rows(name):
    for devices in (1, 2):
        assert_same_shares(lambda: OF_KNOWN_ROWS[name](batches(8, True)), 2, devices)


def late(call, factors=(1, 10)) -> list[Dataset]:
    """Batches of 8 rows, mapped with each factor; a map that is traced again has the last one."""
    made = []
    for factor in factors:
        data = batches(8, drop=True)
        made.append(data.map(lambda x, y: (x, call(y, factor))))  # noqa: B023
    return made


def test_a_function_that_means_another_value_since():
    assert_same_shares(lambda: late(lambda y, factor: y * factor)[0], 2)
    first = late(lambda y, factor: tf.exp(tf.cast(y, tf.float32)) * factor)[0]
    assert "traced again, it has another graph" in plan_of(tfdist.data.per_row(first)).reason


def test_a_declared_map_that_is_for_its_batch_size_alone():
    data = batches(8, True).map(lambda x, y: (x, tf.exp(tf.ones([8])) / float(y.shape[0])))
    reason = plan_of(tfdist.data.per_row(data)).reason
    assert "of a fixed number of rows: it cannot be traced for fewer rows" in reason


@pytest.mark.parametrize("drop", [False, True])
def test_constants_are_multiplied_as_in_the_whole_batch(drop):
    """In one graph, `x * 0.1 * 0.3` may become `x * 0.03`."""

    def make():
        data = Dataset.from_tensor_slices((FLOATS, IMAGES)).batch(8, drop)
        data = data.map(
            lambda x, image: (x * 0.1 * 0.3, tf.image.convert_image_dtype(image, "float32"))
        )
        return data.map(lambda x, image: (x * 0.7, image * 0.3))

    assert_same_shares(make, 2)


def test_a_batch_of_texts():
    features = {"a": tf.io.FixedLenFeature([2], tf.int64)}
    assert_same_shares(lambda: parsed(features), 3)


def test_batches_that_are_padded_to_their_longest_row():
    def make():
        lengths = Dataset.from_generator(
            lambda: (np.arange(i % 4) for i in range(ROWS)),
            output_signature=tf.TensorSpec([None], tf.int64),
        )
        return lengths.padded_batch(8).map(lambda x: (x + 1, tf.reshape(x, tf.shape(x)[:2])))

    assert_same_shares(make, 3)


def test_parts_without_tensors():
    def make():
        data = Dataset.range(ROWS).map(lambda i: (i, None, i + 1)).batch(8)
        return data.map(lambda a, _, b: (a + b * 2, None))

    assert_same_shares(make, 2)
    captured = tf.range(8, dtype=tf.int64)
    data = Dataset.range(ROWS).map(lambda i: (i, None)).batch(8, drop_remainder=True)
    assert first_op_over_rows(data.map(lambda a, _: a + captured)) == "AddV2"


@pytest.mark.long("False", covered_by="the other cases")
@pytest.mark.parametrize("drop", [False, True])
def test_a_batch_of_fewer_rows_than_workers(drop):
    assert_same_shares(lambda: batches(2, drop).map(BY_ROW["Resizing"]), 5)


def test_several_devices():
    assert_same_shares(lambda: batches(10, True).map(BY_ROW["Resizing"]), 2, devices=2)


def test_a_declared_map_runs_once_for_all_rows_of_a_share():
    calls = []

    def noted(values):
        calls.append(len(values))
        return values

    data = batches().map(of_labels(lambda y: tf.numpy_function(noted, [y], tf.int64)))
    data = tfdist.data.per_row(data)
    for _ in own_rows(data, 2, 1):
        pass
    assert calls == [4, 4, 4, 4, 1]  # of the last batch it has no row, and maps one


@tf.function
def count(values):
    return tf.shape(values, tf.int64)[0]


GENERATOR = tf.random.Generator.from_seed(1)
OVER_ROWS = {
    "Mean": of_images(lambda x: tf.cast(x, tf.float32) - tf.reduce_mean(tf.cast(x, tf.float32))),
    "Max": of_images(lambda x: tf.reduce_max(x, 0, keepdims=True)),
    "ReverseV2": lambda x, y: (tf.reverse(x, [0]), y),
    "GatherV2": lambda x, y: (tf.gather(x, [0, 0]), y[:2]),
    "StridedSlice": lambda x, y: (x[1:], y[1:]),
    "Pack": of_labels(lambda y: tf.stack([y, y])),
    "ConcatV2": of_labels(lambda y: tf.concat([y, y], 0)),
    "Reshape": of_images(lambda x: tf.reshape(x, [-1, 3])),
    "Transpose": of_images(lambda x: tf.transpose(x, [1, 0, 2, 3])),
    "Squeeze": of_labels(lambda y: tf.squeeze(y[:, None])),
    "Unpack": lambda x, y: tf.unstack(y[:, None], num=8),
    "AddV2": of_labels(lambda y: y + tf.range(8, dtype=y.dtype)),
    "Cast": of_images(lambda x: tf.cast(tf.cast(x, tf.float32) * 2, tf.uint8)),
    "Relu": of_images(lambda x: tf.nn.relu(tf.cast(x, tf.float32))),
    "RealDiv": of_images(lambda x: tf.cast(x, tf.complex64) / 3),
    "a function with jit_compile": tf.function(lambda x, y: (x, y + 1), jit_compile=True),
    "Fill": of_labels(lambda y: tf.fill([3], 1)),
    "Shape": of_labels(lambda y: y * tf.shape(y, tf.int64)[0]),
    "Shape of a function": of_labels(lambda y: y * count(y)),
    "RandomUniform": of_labels(lambda y: tf.cast(y, tf.float32) + tf.random.uniform([])),
    "StatelessRandomUniformV2": of_images(
        lambda x: tf.cast(x, tf.float32) + tf.random.stateless_uniform(tf.shape(x), [1, 2])
    ),
    "RngReadAndSkip": of_labels(lambda y: y + GENERATOR.uniform([], 0, 9, tf.int64)),
    "EagerPyFunc": of_labels(lambda y: tf.py_function(lambda v: v, [y], tf.int64)),
    "TopKV2": of_labels(lambda y: tf.math.top_k(y, 1).values),
    "If": of_labels(lambda y: tf.cond(tf.shape(y)[0] > 3, lambda: y, lambda: y + 1)),
    "Cumsum": of_labels(tf.cumsum),
    "Cumsum of fractions": of_images(lambda x: tf.cumsum(tf.cast(x, tf.float32), 1)),
    "Roll": of_images(lambda x: tf.roll(x, [1, 2], [1, 0])),
    "Parts of rows of constants": of_labels(
        lambda y: tf.gather(tf.ones([8, 4]), y[:, None] % 4, batch_dims=1)
    ),
    "Branches of which one has rows": of_labels(
        lambda y: tf.cond(TABLE.size() > 1, lambda: y, lambda: tf.constant([1], tf.int64))
    ),
    "Rows in a branch": of_labels(
        lambda y: tf.cond(TABLE.size() > 1, lambda: y, lambda: tf.reverse(y, [0]))
    ),
    "MatMul": of_images(lambda x: tf.cast(x[:, 0, 0], tf.float64) @ tf.transpose(WEIGHTS)),
}


# A size is found before the op that uses it.
FOUND = {
    "Shape of a function": "Shape",
    "StatelessRandomUniformV2": "Shape",
    "If": "Shape",
    "Cumsum of fractions": "Cumsum",
    "Parts of rows of constants": "GatherV2",
    "Branches of which one has rows": "StatelessIf",
    "Rows in a branch": "ReverseV2",
}


@pytest.mark.parametrize("op", OVER_ROWS)
def test_an_op_that_may_look_at_several_rows(op):
    call = OVER_ROWS[op]
    data = batches(8, op in ("Unpack", "AddV2")).map(call)
    found = first_op_over_rows(data)
    assert found == FOUND.get(op, op)
    is_drawn = op in ("RandomUniform", "RngReadAndSkip")
    why = (
        "so that the result depends on the calls before" if is_drawn else "which may need all rows"
    )
    assert f"runs {found}, {why}" in plan_of(data).reason


def test_sparse_and_ragged_batches_are_not_cut():
    sparse = parsed({"a": tf.io.VarLenFeature(tf.int64)})
    assert first_op_over_rows(sparse) == "ParseExampleV2"
    ragged = Dataset.range(9).map(tf.range).ragged_batch(4).map(lambda x: x + 1)
    assert plan_of(ragged).reason != ""
