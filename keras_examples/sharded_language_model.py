"""A small language model, whose optimizer's state is divided over the workers.

    tfdist run --workers 2 keras_examples/sharded_language_model.py

prints:

    [worker 0] Epoch 1/2
    ...
    [worker 0] bits of a byte: 3.31; sum of the weights: 1,085.11
    [worker 0] optimizer: 3.5 of 6.9 MB here
    [worker 1] optimizer: 3.5 of 6.9 MB here

In one process the first of these lines is the same, and the optimizer has all:

    python keras_examples/sharded_language_model.py

The model predicts the next byte of a text: the licenses that each Debian machine has, or the files
that --text names.
"""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from common import SEED, training_parser

import tfdist

LICENSES = "/usr/share/common-licenses"
BYTES = 256
LENGTH = 64  # bytes that are read for each prediction
WIDTH, HEADS, BLOCKS = 128, 4, 4


def read_text(paths: list[str]) -> np.ndarray:
    """Reads files, and the files in folders, as one array, uint8."""
    files = [Path(path) for path in paths]
    files = [f for path in files for f in (sorted(path.iterdir()) if path.is_dir() else [path])]
    texts = [f.read_bytes() for f in files if f.is_file() and not f.is_symlink()]
    return np.frombuffer(b"\n".join(texts), np.uint8)


def sequences(text: np.ndarray, batch_size: int) -> tf.data.Dataset:
    """Batches of inputs and targets, int32[batch, LENGTH]; a target is the byte that follows."""
    count = (len(text) - 1) // LENGTH
    inputs = text[: count * LENGTH].reshape(count, LENGTH).astype("int32")
    targets = text[1 : count * LENGTH + 1].reshape(count, LENGTH).astype("int32")
    rows = tf.data.Dataset.from_tensor_slices((inputs, targets)).shuffle(count, seed=SEED)
    return rows.batch(batch_size, drop_remainder=True)


def one_hot(ids: tf.Tensor) -> tf.Tensor:
    """Returns bytes and their positions as float32[batch, LENGTH, BYTES + LENGTH]."""
    positions = tf.broadcast_to(tf.eye(LENGTH), [tf.shape(ids)[0], LENGTH, LENGTH])
    return tf.concat([tf.one_hot(ids, BYTES), positions], axis=-1)


def transformer() -> keras.Model:
    """Makes a model of int32[batch, LENGTH] that returns logits, [batch, LENGTH, BYTES]."""
    layers = keras.layers
    inputs = keras.Input((LENGTH,), dtype="int32")
    features = layers.Lambda(one_hot, output_shape=(LENGTH, BYTES + LENGTH))
    # A dense kernel holds the rows of bytes and of positions.
    hidden = layers.Dense(WIDTH, use_bias=False)(features(inputs))
    for _ in range(BLOCKS):
        normal = layers.LayerNormalization()(hidden)
        attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
        hidden = hidden + attention(normal, normal, use_causal_mask=True)
        normal = layers.LayerNormalization()(hidden)
        hidden = hidden + layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, "gelu")(normal))
    return keras.Model(inputs, layers.Dense(BYTES)(layers.LayerNormalization()(hidden)))


def main() -> None:
    parser = training_parser(__doc__, epochs=2, batch_size=32, together="in all workers")
    parser.add_argument("--text", nargs="+", default=[LICENSES], help="files or folders")
    arguments = parser.parse_args()
    strategy = tfdist.MultiWorkerMirroredStrategy(sharding=tfdist.Sharding(stage=1))
    text = read_text(arguments.text)[: arguments.limit]
    keras.utils.set_random_seed(SEED)
    with strategy.scope():
        model = transformer()
        model.compile(
            keras.optimizers.AdamW(0.001, global_clipnorm=1.0),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    data = sequences(text, arguments.batch_size)
    verbose = (1 if sys.stdout.isatty() else 2) if strategy.is_chief else 0
    history = model.fit(data, epochs=arguments.epochs, verbose=verbose)
    total = sum(float(np.sum(weight, dtype=np.float64)) for weight in model.get_weights())
    if strategy.is_chief:
        bits = history.history["loss"][-1] / np.log(2)
        print(f"bits of a byte: {bits:.2f}; sum of the weights: {total:,.2f}")
    slots = [variable for variable in model.optimizer.variables if len(variable.shape)]
    here = sum(variable.value.shape.num_elements() for variable in slots) * 4
    whole = sum(int(np.prod(variable.shape)) for variable in slots) * 4
    print(f"optimizer: {here / 1e6:.1f} of {whole / 1e6:.1f} MB here")


if __name__ == "__main__":
    main()
