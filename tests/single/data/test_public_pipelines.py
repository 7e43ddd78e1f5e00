"""Pipelines of public tutorials and examples, reduced: which are cut, and with the same rows.

Docstrings name the pages of tensorflow.org and keras.io.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.training.pipelines import Dataset, assert_same_shares
from tfdist.data.cut.plan import CutPlan, plan_of

AUTOTUNE = tf.data.AUTOTUNE
ROWS = 45
IMAGES = np.random.default_rng(0).integers(0, 256, (ROWS, 6, 6, 3)).astype(np.uint8)
LABELS = np.arange(ROWS) % 5
TEXTS = np.array([f"w{i % 4} w{i % 7}" for i in range(ROWS)])
RECORDS = [
    tf.train.Example(
        features=tf.train.Features(
            feature={
                "image": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[tf.io.encode_png(image).numpy()])
                ),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
        )
    ).SerializeToString()
    for image, label in zip(IMAGES, LABELS, strict=True)
]


def arrays() -> Dataset:
    return Dataset.from_tensor_slices((IMAGES, LABELS))


def scaled(image, label):
    return tf.image.resize(image, (4, 4)) / 255.0, label


def decoded(record):
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    example = tf.io.parse_single_example(record, features)
    return scaled(tf.io.decode_png(example["image"], channels=3), example["label"])


def image_folder(batch: bool = True) -> Dataset:
    """As keras.utils.image_dataset_from_directory: paths are shuffled before they are read."""
    paths = Dataset.zip((Dataset.from_tensor_slices(np.arange(ROWS)), arrays().map(lambda x, y: y)))
    paths = paths.shuffle(ROWS, seed=3)
    images = paths.map(lambda at, label: scaled(tf.gather(IMAGES, at), label), AUTOTUNE)
    return images.batch(8).prefetch(AUTOTUNE)


def stateless_augmentation() -> Dataset:
    """tutorials/images/data_augmentation, by a counter."""
    counter = tf.data.Dataset.counter()
    numbered = Dataset.zip((arrays(), (counter, counter)))

    def augment(pair, seed):
        image, label = scaled(*pair)
        return tf.image.stateless_random_brightness(image, 0.5, seed), label

    return numbered.shuffle(ROWS, seed=1).map(augment, AUTOTUNE).batch(8).prefetch(AUTOTUNE)


def interleaved_records() -> Dataset:
    """The input of most ImageNet scripts."""
    shards = Dataset.range(3).shuffle(3, seed=2)
    records = shards.interleave(
        lambda shard: Dataset.from_tensor_slices(RECORDS).shard(3, shard),
        cycle_length=2,
        num_parallel_calls=AUTOTUNE,
        deterministic=True,
    )
    records = records.shuffle(16, seed=5).repeat(2).map(decoded, AUTOTUNE)
    return records.batch(8, drop_remainder=True).prefetch(AUTOTUNE)


def unordered_records() -> Dataset:
    """keras.io/examples/keras_recipes/tfrecord."""
    options = tf.data.Options()
    options.deterministic = False
    records = Dataset.from_tensor_slices(RECORDS).with_options(options)
    return records.map(decoded).shuffle(20, seed=4).prefetch(AUTOTUNE).batch(8)


def next_characters() -> Dataset:
    """tutorials/text/text_generation."""
    windows = Dataset.from_tensor_slices(np.arange(400)).batch(7, drop_remainder=True)
    pairs = windows.map(lambda window: (window[:-1], window[1:]))
    return pairs.shuffle(30, seed=1).batch(8, drop_remainder=True).prefetch(AUTOTUNE)


def ratings() -> Dataset:
    """The first page of TensorFlow Recommenders."""
    data = Dataset.from_tensor_slices({"user": TEXTS, "movie": TEXTS[::-1], "rating": LABELS})
    data = data.map(lambda row: {"movie": row["movie"], "user": row["user"]})
    data = data.shuffle(ROWS, seed=42, reshuffle_each_iteration=False)
    return data.take(40).shuffle(40, seed=7).batch(16).cache()


def columns() -> Dataset:
    """keras.io/examples/structured_data/structured_data_classification_from_scratch."""
    frame = {"age": np.arange(ROWS), "thal": TEXTS}
    age = keras.layers.Normalization(mean=20.0, variance=9.0)
    thal = keras.layers.StringLookup(vocabulary=["w0 w0", "w1 w1"], output_mode="one_hot")
    data = Dataset.from_tensor_slices((frame, LABELS)).shuffle(ROWS, seed=2).batch(8)
    calls = lambda x, y: ({"age": age(x["age"][:, None]), "thal": thal(x["thal"])}, y)  # noqa: E731
    return data.map(calls, AUTOTUNE).prefetch(AUTOTUNE)


def windows_of_a_series() -> Dataset:
    """tutorials/structured_data/time_series: windows of a utility of Keras, split as batches."""
    series = np.arange(120, dtype=np.float32).reshape(60, 2)
    data = keras.utils.timeseries_dataset_from_array(
        series, None, sequence_length=6, shuffle=True, seed=3, batch_size=8
    )

    def split(batch):
        labels = tf.stack([batch[:, 4:, column] for column in (0, 1)], axis=-1)
        return tf.ensure_shape(batch[:, :4, :], [None, 4, 2]), labels

    return data.map(split)


def translations(declare=tfdist.data.per_row) -> Dataset:
    """keras.io/examples/nlp/neural_machine_translation_with_transformer."""
    words = keras.layers.TextVectorization(
        vocabulary=[f"w{i}" for i in range(7)], output_sequence_length=4
    )
    data = Dataset.from_tensor_slices((TEXTS, TEXTS[::-1])).batch(8)
    data = declare(data.map(lambda a, b: ({"encoder": words(a)}, words(b)), AUTOTUNE))
    return data.cache().shuffle(2048, seed=1).prefetch(16)


def speech() -> Dataset:
    """keras.io/examples/audio/transformer_asr: maps in the parts of a zip."""
    audio = Dataset.from_tensor_slices(IMAGES).map(lambda x: tf.cast(x, tf.float32), AUTOTUNE)
    texts = Dataset.from_tensor_slices(LABELS)
    pairs = Dataset.zip((audio, texts)).map(lambda x, y: {"source": x, "target": y}, AUTOTUNE)
    return pairs.batch(8).prefetch(AUTOTUNE)


def pets() -> Dataset:
    """tutorials/images/segmentation, without its random flips: a pair is augmented after batch."""
    data = arrays().cache().shuffle(ROWS, seed=1).map(scaled, AUTOTUNE)
    return data.batch(8).repeat(2).map(lambda x, y: (tf.image.flip_left_right(x), y)).prefetch(2)


def cached_images() -> Dataset:
    """tutorials/load_data/images: images are read in the first epoch alone."""
    data = arrays().map(scaled, AUTOTUNE).cache()
    return data.shuffle(ROWS, seed=4).batch(8).prefetch(AUTOTUNE)


CUT = [
    image_folder,
    stateless_augmentation,
    interleaved_records,
    unordered_records,
    next_characters,
    ratings,
    columns,
    windows_of_a_series,
    translations,
    speech,
    pets,
    cached_images,
]


@pytest.mark.parametrize("make", CUT)
def test_each_worker_maps_its_rows(make):
    assert_same_shares(make, 2)


def test_parallel_maps_that_draw_numbers():
    """tutorials/images/data_augmentation, by a generator: the draws of a row are open."""
    generator = tf.random.Generator.from_seed(123, alg="philox")

    def augment(image, label):
        seed = generator.make_seeds(2)[0]
        image, label = scaled(image, label)
        return tf.image.stateless_random_brightness(image, 0.5, seed), label

    data = arrays().shuffle(ROWS).map(augment, num_parallel_calls=AUTOTUNE).batch(8)
    assert isinstance(plan_of(data), CutPlan)


def images_in_a_file() -> Dataset:
    """tutorials/load_data/images, whose cache is larger than the memory."""
    return arrays().map(scaled, AUTOTUNE).cache("images").shuffle(ROWS).batch(8)


def augmented_batches() -> Dataset:
    """keras.io/examples/vision/image_classification_from_scratch."""
    flip = keras.layers.RandomFlip("horizontal")
    return image_folder().map(lambda x, y: (flip(x, training=True), y), AUTOTUNE)


def mixed_up() -> Dataset:
    """keras.io/examples/vision/mixup."""
    pair = Dataset.zip((image_folder(), image_folder()))
    return pair.map(lambda one, two: ((one[0] + two[0]) / 2, one[1]), AUTOTUNE)


def spectrograms() -> Dataset:
    """tutorials/audio/simple_audio."""
    waves = Dataset.from_tensor_slices(np.zeros((ROWS, 64, 1), np.float32)).batch(8)
    waves = waves.map(lambda x: tf.squeeze(x, axis=-1), AUTOTUNE)
    return waves.map(lambda x: tf.abs(tf.signal.stft(x, 16, 8)), AUTOTUNE).cache()


def boxes() -> Dataset:
    """keras.io/examples/vision/retinanet: padded to the most boxes of a batch."""
    data = arrays().map(lambda image, label: (scaled(image, label)[0], tf.range(label)))
    return data.padded_batch(8, drop_remainder=True)


def buckets() -> Dataset:
    """Texts of about the same length together, as by many scripts for translation."""
    tokens = Dataset.from_tensor_slices(TEXTS).map(lambda text: tf.strings.bytes_split(text))
    return tokens.bucket_by_sequence_length(tf.size, [4, 6], [8, 8, 8])


WHOLE = {
    images_in_a_file: "Cache comes after map",
    augmented_batches: "a map over batches runs ",
    mixed_up: "Zip comes after batch",
    spectrograms: "a map over batches runs ",
    boxes: "padded_batch pads to the longest row",
    buckets: "GroupByWindow comes after batch",
}


@pytest.mark.parametrize("make", WHOLE)
def test_what_prevents_it_is_told(make):
    assert WHOLE[make] in plan_of(make()).reason


def test_a_declaration_is_needed_for_texts():
    assert "tfdist.data.per_row" in plan_of(translations(lambda data: data)).reason
