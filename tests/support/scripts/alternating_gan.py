"""A GAN of points on a circle: the discriminator and the generator are trained in turns."""

import os
from pathlib import Path

import keras
import numpy as np

import tfdist

OUTPUT = Path(os.environ.get("OUTPUT", "output"))
OUTPUT.mkdir(parents=True, exist_ok=True)
keras.backend.set_floatx("float64")
keras.utils.set_random_seed(2)
strategy = tfdist.MultiWorkerMirroredStrategy()

ROUNDS, ROWS, NOISE = 12, 128, 4
angles = np.random.uniform(0.0, 2.0 * np.pi, size=1024)
points = np.stack([np.cos(angles), np.sin(angles)], axis=1)

with strategy.scope():
    generator = keras.Sequential(
        [
            keras.Input((NOISE,)),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.Dense(2),
        ]
    )
    discriminator = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(24, activation="tanh"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    discriminator.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    discriminator.trainable = False
    gan = keras.Sequential([keras.Input((NOISE,)), generator, discriminator])
    gan.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")

losses = []
for turn in range(ROUNDS):
    real = points[np.random.randint(0, len(points), ROWS)]
    fake = generator.predict(np.random.normal(size=(ROWS, NOISE)), batch_size=64, verbose=0)
    x = np.concatenate([real, fake])
    y = np.concatenate([np.full((ROWS, 1), 0.9), np.zeros((ROWS, 1))])
    discriminator.trainable = True
    of_discriminator = discriminator.fit(
        x,
        y,
        batch_size=48,
        verbose=0,
        callbacks=[keras.callbacks.CSVLogger(OUTPUT / "discriminator.csv", append=turn > 0)],
    )
    discriminator.trainable = False
    of_gan = gan.fit(
        np.random.normal(size=(2 * ROWS, NOISE)), np.ones((2 * ROWS, 1)), batch_size=48, verbose=0
    )
    losses.append((of_discriminator.history["loss"][0], of_gan.history["loss"][0]))
    if turn % 4 == 3:
        ahead = "generator" if losses[-1][1] < losses[-1][0] else "discriminator"
        print(f"decision: after round {turn} the {ahead} is ahead")

sample = generator.predict(np.random.normal(size=(64, NOISE)), verbose=0)
radius = float(np.mean(np.linalg.norm(sample, axis=1)))
print(f"decision: the radius is {radius:.3f}")
