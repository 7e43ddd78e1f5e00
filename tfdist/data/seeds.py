"""The seeds that decide in which order data comes."""

from __future__ import annotations

import dataclasses

from tfdist.data.position import InputPosition

# TensorFlow does not tell its global seed.
from tfdist.internals.tensorflow import context


@dataclasses.dataclass(frozen=True)
class Seed:
    """The seed that decides an order.

    Args:
      value: the same on all workers.
      is_drawn: it was drawn at random, because the user had set none.
    """

    value: int
    is_drawn: bool


def users_seed() -> Seed | None:
    """The seed of `keras.utils.set_random_seed` or `tf.random.set_seed`, if there is one."""
    seed = context.global_seed()
    return None if seed is None else Seed(int(seed), False)


def restored(own: Seed | None, position: InputPosition) -> tuple[Seed | None, list[str]]:
    """Returns the seed to continue with.

    Args:
      own: this process's.
      position: where to continue.

    Returns:
      The seed of `position` if both were drawn, else `own`; and why the order is another one.
    """
    saved = None if position.seed is None else Seed(position.seed, position.seed_is_drawn)
    if own is not None and own.is_drawn and saved is not None and saved.is_drawn:
        return saved, []
    if own == saved:
        return own, []
    names = ["none" if seed is None or seed.is_drawn else str(seed.value) for seed in (saved, own)]
    return own, [f"the seed of keras.utils.set_random_seed was {names[0]} and is {names[1]}"]
