"""Where a training stands in its input."""

from __future__ import annotations

import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class InputPosition:
    """The next batch that a training reads; a value, which checkpoints carry.

    A `shuffle` has another order each time its dataset is opened, that is, each time an iterator is
    made. So a batch is named by two numbers: the opening and the batches since. They count batches
    of all workers together, so that another number of workers can continue from here.

    Args:
      epoch: the epoch of `fit`, from 0.
      batch: the number of the next batch in this epoch, from 0.
      opening: the number of the opening that the next batch comes from, from 1.
      batches: how many batches of this opening have been read.
      openings_read: of how many earlier openings any batch was read.
      epochs_ended: how many epochs of the data have ended since `fit` began.
      seed: decides the order, which depends on the seed of `tf.random.set_seed` too; `None` if
        there is none.
      seed_is_drawn: the seed was drawn at random, because the user had set none.
      workers: the number of workers at that time.
      draws: how many orders each shuffle that draws one for each opening had drawn before this
        opening, in the life of its process: first the training data's, and then the validation
        data's. `None` if that is unknown.
      draws_now: how many they have drawn now, if this opening has begun.
    """

    epoch: int = 0
    batch: int = 0
    opening: int = 1
    batches: int = 0
    openings_read: int = 0
    epochs_ended: int = 0
    seed: int | None = None
    seed_is_drawn: bool = False
    workers: int = 1
    draws: list[int] | None = None
    draws_now: list[int] | None = None

    def to_json(self) -> str:
        """The position as JSON, for files."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> InputPosition:
        """Reads what `to_json` wrote.

        Raises:
          ValueError: it is something else.
        """
        try:
            found = json.loads(text)
            return cls(**found)
        except (ValueError, TypeError) as error:
            fields = ", ".join(field.name for field in dataclasses.fields(cls))
            raise ValueError(
                f"a position in the input: expected JSON with {fields}, received {text!r}"
            ) from error
