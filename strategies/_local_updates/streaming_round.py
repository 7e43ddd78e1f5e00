"""Rounds of which each fragment is synchronized in another step, while the workers train on."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.ops.collectives import collective_keys
from tfdist.strategies._local_updates.rounds import StepRounds


class StreamingRound(StepRounds):
    """The rounds of fragmented groups; arguments as in `StepRounds`, and a schedule.

    Fragment p of P is sent in the steps s of a round with s = (p + 1) H / P modulo H. Its exchange
    runs in a thread, and is merged `delay` steps later. An end of an epoch merges what is under
    way, and then synchronizes all fragments.

    Args:
      fragments: P.
      delay: in steps.
      *arguments: as in `StepRounds`.
    """

    def __init__(self, fragments: int, delay: int, *arguments: Any) -> None:
        self._fragments = fragments
        self._delay = delay
        super().__init__(*arguments)
        # One thread: exchanges run in the order in which all workers begin them.
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "tfdist-streaming")
        self._exchanges: dict[int, concurrent.futures.Future] = {}
        self._settle = tf.function(self._merge_all)

    def _make(self) -> None:
        super()._make()
        indices = range(self._fragments)
        # Since a fragment was sent, on this worker.
        self._rows_since = [tf.Variable(0.0, dtype=tf.float64) for _ in indices]
        self._steps_since = [tf.Variable(0, dtype=tf.int64) for _ in indices]
        self._is_under_way = [tf.Variable(False) for _ in indices]

    def saved(self) -> dict[str, tf.Variable]:
        """As `StepRounds.saved`, with the counters of each fragment."""
        found = super().saved()
        for i in range(self._fragments):
            found[f"fragment/{i}/rows"] = self._rows_since[i]
            found[f"fragment/{i}/steps"] = self._steps_since[i]
        return found

    def settle(self) -> None:
        """Merges what is under way, which no checkpoint can hold."""
        with tf.init_scope():
            self._settle()

    def end_step(self, rows: tf.Tensor) -> None:
        """Counts a step; sends and merges the fragments whose turn it is."""
        step = self._steps.assign_add(1, read_value=True)
        self._steps_in_all.assign_add(1)
        self._count(rows)
        for index in range(self._fragments):
            sent = (index + 1) * self._sync_every // self._fragments
            if self._delay == 0:
                self._if(self._is_turn(step, sent), self._synchronize, index)
                continue
            is_turn = self._is_turn(step, sent + self._delay)
            self._if(is_turn & self._is_under_way[index], self._merge, index)
            self._if(self._is_turn(step, sent), self._send, index)

    def _count(self, rows: tf.Tensor) -> None:
        for rows_since, steps_since in zip(self._rows_since, self._steps_since, strict=True):
            rows_since.assign_add(rows)
            steps_since.assign_add(1)

    def _is_turn(self, step: tf.Tensor, of_round: int) -> tf.Tensor:
        return tf.equal((step - of_round) % self._sync_every, 0)

    def _if(self, condition: tf.Tensor, act: Callable[[int], None], index: int) -> None:
        def then() -> tf.Tensor:
            act(index)
            return tf.constant(True)

        tf.cond(condition, then, lambda: tf.constant(False))

    def _end_if_begun(self) -> None:
        self._merge_all()
        for index, steps_since in enumerate(self._steps_since):
            self._if(steps_since > 0, self._synchronize, index)
        for fragment in self._all_fragments():
            fragment.go_to_anchors()
        self._steps.assign(0)

    def _all_fragments(self) -> list[Any]:
        return [fragment for group in self.groups for fragment in group.fragments]

    def _merge_all(self) -> None:
        for index, is_under_way in enumerate(self._is_under_way):
            self._if(is_under_way.read_value(), self._merge, index)

    def _synchronize(self, index: int) -> None:
        """Sends a fragment and merges it in the same step."""
        rows, own = self._contribution(index)
        means = self._weighted_means(rows, own, self._anchors(index))
        self._finish(index, means)
        for variable, mean in zip(self._averaged(index), self._rest(index, means), strict=True):
            variable.assign(mean)

    def _send(self, index: int) -> None:
        rows, own = self._contribution(index)
        self._is_under_way[index].assign(True)

        def begin(rows: tf.Tensor, *own: tf.Tensor) -> None:
            self._exchanges[index] = self._thread.submit(self._exchange, index, rows, own)

        with tf.device("/device:CPU:0"):
            tf.py_function(begin, [rows, *own], [])

    def _exchange(self, index: int, rows: tf.Tensor, own: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Runs in the thread; returns the means, and then what the worker has sent of the rest."""
        # The eager collectives of other threads have another order on each worker.
        with collective_keys.eager_scope("streaming"):
            means = self._weighted_means(rows, list(own), self._anchors(index))
        return [*means, *self._rest(index, list(own))]

    def _merge(self, index: int) -> None:
        """Merges a fragment whose exchange was begun `delay` steps ago; waits for its end."""
        anchors, averaged = self._anchors(index), self._averaged(index)
        dtypes = [v.dtype for v in [*anchors, *averaged, *averaged]]
        with tf.device("/device:CPU:0"):
            received = tf.py_function(lambda: self._exchanges.pop(index).result(), [], dtypes)
        for tensor, variable in zip(received, [*anchors, *averaged, *averaged], strict=True):
            tensor.set_shape(variable.shape)
        self._finish(index, received)
        means, sent = received[len(anchors) :][: len(averaged)], received[-len(averaged) :]
        for variable, mean, before in zip(averaged, means, sent[: len(averaged)], strict=True):
            # The worker's additions in between stay.
            variable.assign_add(mean - before)
        self._is_under_way[index].assign(False)

    def _contribution(self, index: int) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """The worker's rows since it sent the fragment, and what it sends now."""
        rows = self._rows_since[index].read_value()
        own = []
        for group in self.groups:
            group.fragments[index].begin()  # if no step of this worker had rows
            own += group.fragments[index].pseudo_gradients()
        own += [tf.identity(variable.read_value()) for variable in self._averaged(index)]
        self._rows_since[index].assign(0.0)
        self._steps_since[index].assign(0)
        return rows, own

    def _anchors(self, index: int) -> list[tf.Variable]:
        return [anchor for group in self.groups for anchor in group.fragments[index].anchors]

    def _averaged(self, index: int) -> list[tf.Variable]:
        """Statistics travel with the last fragment."""
        return self._statistics() if index == self._fragments - 1 else []

    def _rest(self, index: int, values: list[tf.Tensor]) -> list[tf.Tensor]:
        return values[len(self._anchors(index)) :]

    def _finish(self, index: int, means: list[tf.Tensor]) -> None:
        for group in self.groups:
            fragment = group.fragments[index]
            fragment.finish(means[: len(fragment.variables)], None)
            means = means[len(fragment.variables) :]
