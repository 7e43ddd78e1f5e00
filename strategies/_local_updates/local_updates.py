"""The state that the steps of a strategy share: which variables they train, and in which rounds."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdist import ops
from tfdist._types import Gradient, KerasOptimizer, KerasVariable
from tfdist.compression import Compression
from tfdist.compression.states import GradientState
from tfdist.elastic.job import ElasticJob

# Cond and while loops are functions of their own, which belong to one place of the outer function.
from tfdist.internals.tensorflow import ControlFlowFuncGraph
from tfdist.rules import Rule, StreamingDiLoCo
from tfdist.strategies._local_reduce.local_all_reduce import unique_slices
from tfdist.strategies._local_updates.asynchronous import AsynchronousGroup, AsynchronousRound
from tfdist.strategies._local_updates.centre import Centre
from tfdist.strategies._local_updates.counter import Counter
from tfdist.strategies._local_updates.elastic_round import ElasticRound
from tfdist.strategies._local_updates.former_optimizer import FormerOptimizer
from tfdist.strategies._local_updates.fragmented_group import FragmentedGroup
from tfdist.strategies._local_updates.group import (
    Group,
    component,
    of_tensorflow,
    without_strategy,
)
from tfdist.strategies._local_updates.round_end import RoundEnd
from tfdist.strategies._local_updates.rounds import StepRounds
from tfdist.strategies._local_updates.saved_state import (
    Values,
    anchors_in,
    values_of_all,
    values_of_one,
    with_positions,
)
from tfdist.strategies._local_updates.streaming_round import StreamingRound

if TYPE_CHECKING:
    from tfdist.keras.strategies import LocalTraining

_log = logging.getLogger("tfdist")

AnyGroup = Group | FragmentedGroup


@dataclasses.dataclass(frozen=True)
class _Restored:
    """Values of groups that have not been made.

    Args:
      variables: of the model, in its order.
      groups: this worker's values of each group, by the position of its first variable.
    """

    variables: list[weakref.ref[tf.Variable]]
    groups: dict[int, Values]


class _Step:
    """One call of `strategy.run` as it is traced, or as it runs eagerly.

    Args:
      rows: the worker's rows, float64[].
    """

    def __init__(self, rows: tf.Tensor) -> None:
        self.rows = rows
        # Otherwise no branch is needed.
        self.may_be_empty = tf.get_static_value(rows) is None or tf.get_static_value(rows) == 0
        self.graph = _graph()
        self.groups: list[AnyGroup] = []


class _Thread(threading.local):
    step: _Step | None = None
    rounds: list[ElasticRound] | None = None
    group: AnyGroup | None = None
    has_trained = False


class LocalUpdates:
    """Trains this worker's variables alone, and combines them with the others' when a round ends.

    A step is a call of `strategy.run` in which an optimizer is applied.

    Args:
      workers: the number of workers.
      communicator: the workers; `None` if there is one.
      rule: how they combine their variables.
      sync_every: the steps of a round.
      warmup_steps: the first steps, each of which is a round.
      slots: the treatment of optimizers' own variables: "keep", "average" or "reset".
      timeout: of collectives, in seconds.
      compression: of pseudo-gradients; `None` sends them as they are.
      centre: of an asynchronous rule; `None` for the others.
      job: the members of an elastic job; `None` of any other job.
    """

    def __init__(
        self,
        workers: int,
        communicator: ops.Communicator | None,
        rule: Rule,
        sync_every: int,
        warmup_steps: int,
        slots: str,
        timeout: float | None,
        compression: Compression | None,
        centre: Centre | None = None,
        job: ElasticJob | None = None,
    ) -> None:
        self.workers = workers
        self.sync_every = sync_every
        self._communicator = communicator
        self._rule = rule
        self._warmup_steps = warmup_steps
        self._slots = slots
        self._timeout = timeout
        self._centre = centre
        self._job = job
        self._compressor = None if compression is None else compression.compressor()
        # Both live as long as the optimizers.
        self._groups: weakref.WeakKeyDictionary[KerasOptimizer, dict[tuple[int, ...], AnyGroup]]
        self._groups = weakref.WeakKeyDictionary()
        self._rounds: weakref.WeakValueDictionary[tuple[int, ...], StepRounds]
        self._rounds = weakref.WeakValueDictionary()
        self._restored: list[_Restored] = []
        # States of groups that were restored, and that no optimizer of the program trains yet.
        self._former: list[FormerOptimizer] = []
        # How often the workers were to ask each other for more data, since they last did.
        self.asked = without_strategy(lambda: tf.Variable(0, dtype=tf.int64))
        # Strong references: garbage is collected at another time on each worker.
        self._statistics: list[tf.Variable] = []
        self._thread = _Thread()

    @property
    def is_in_step(self) -> bool:
        """Whether this thread traces a step, or runs it eagerly."""
        return self._thread.step is not None

    @property
    def is_asynchronous(self) -> bool:
        """Whether each worker ends its rounds by itself."""
        return self._centre is not None

    @property
    def is_within_round(self) -> bool:
        """Whether a round has begun that has not ended."""
        return any(not running.is_between for running in list(self._rounds.values()))

    @property
    def has_trained(self) -> bool:
        """Whether an optimizer was applied in this thread's last call of `strategy.run`."""
        return self._thread.has_trained

    def average(self, variable: KerasVariable) -> None:
        """Lets a variable that a worker updates by itself be averaged at the end of a round."""
        self._statistics.append(variable)

    @contextlib.contextmanager
    def ending_rounds(self) -> Iterator[list[ElasticRound]]:
        """Within it a step of an elastic job is traced, whose caller ends the rounds.

        Yields:
          A list, to which the rounds of the step are added.
        """
        rounds = self._thread.rounds = []
        try:
            yield rounds
        finally:
            self._thread.rounds = None

    def counter(self, variable: tf.Variable) -> Counter:
        """The counter of this worker's additions to its copy of a variable."""
        return Counter(variable)

    def round_end(self, rounds: Sequence[ElasticRound], counters: Sequence[Counter]) -> RoundEnd:
        """The end of the rounds of a step of an elastic job; arguments as in `RoundEnd`."""
        assert self._job is not None
        return RoundEnd(self._job, rounds, counters, self._timeout)

    @contextlib.contextmanager
    def step(self, rows: tf.Tensor) -> Iterator[None]:
        """Traces or runs one call of `strategy.run`, and ends the step after it."""
        step = self._thread.step = _Step(rows)
        try:
            yield
        finally:
            self._thread.step = None
            self._thread.has_trained = bool(step.groups)
        if step.groups:
            running = self._round(step.groups)
            running.end_step(rows)
            if self._thread.rounds is not None and isinstance(running, ElasticRound):
                self._thread.rounds.append(running)

    def apply(
        self,
        optimizer: KerasOptimizer,
        variables: Sequence[KerasVariable],
        update: Callable[[], object],
    ) -> None:
        """Applies an optimizer to this worker's variables.

        A worker without rows changes nothing: its optimizer would continue by momentum.

        Args:
          optimizer: of Keras 3 or tf_keras; it has been built.
          variables: which it trains.
          update: applies it.

        Raises:
          ValueError: the optimizer keeps moving averages, or another one trains some of the
            variables in the same step, or it is applied in a `tf.function` of its own, or in a
            custom loop of an elastic job.
        """
        if self._job is not None and self._thread.rounds is None:
            raise ValueError(
                "LocalUpdateStrategy: expected fit of Keras 3 in a job that continues with fewer "
                "workers (min_contributors, TFDIST_ELASTIC), but an optimizer is applied in a "
                "custom loop"
            )
        step = self._thread.step
        if step is None or not _belongs(_graph(), step.graph):
            raise ValueError(
                f"LocalUpdateStrategy: expected optimizer {optimizer.name!r} to be applied by the "
                "function that strategy.run is given, but it is applied in a tf.function which "
                "that one calls. Make the outer function the tf.function"
            )
        group = self._group(optimizer, [of_tensorflow(v) for v in variables])
        if group not in step.groups:
            others = {id(variable) for other in step.groups for variable in other.variables}
            shared = [v.name for v in group.variables if id(v) in others]
            if shared:
                raise ValueError(
                    "LocalUpdateStrategy: expected each variable to be trained by one optimizer, "
                    f"but {optimizer.name!r} and another one train {shared[0]!r}"
                )
            step.groups.append(group)

        def train() -> tf.Tensor:
            group.begin()
            before, self._thread.group = self._thread.group, group
            try:
                update()
            finally:
                self._thread.group = before
            return tf.constant(True)

        if step.may_be_empty:
            tf.cond(step.rows > 0, train, lambda: tf.constant(False))
        else:
            train()

    def own_gradients(self, grads_and_vars: Sequence[tuple]) -> list[tuple]:
        """The gradients that the optimizer takes in place of the sum of all workers' gradients.

        A loss is divided by the number of workers, whose gradients are to be summed. The worker's
        own gradient, times the number of workers, stands for that sum.

        Raises:
          ValueError: the rule changes gradients, and this is not within `apply`.
        """
        group = self._thread.group
        if group is None and type(self._rule).gradient is not Rule.gradient:
            raise ValueError(
                "LocalUpdateStrategy: expected an optimizer that reduces gradients when it applies "
                f"them, because {type(self._rule).__name__} changes them there, but they were "
                "reduced before"
            )
        scaled = []
        for gradient, variable in grads_and_vars:
            if gradient is not None:
                gradient = _times(gradient, self.workers)
                gradient = gradient if group is None else group.gradient(variable, gradient)
            scaled.append((gradient, variable))
        return scaled

    def synchronize(self) -> None:
        """Ends the rounds that have begun; the variables equal the anchors then.

        Raises:
          ValueError: the job is elastic, where `fit` alone ends rounds.
        """
        if self._job is not None:
            raise ValueError(
                "LocalUpdateStrategy.synchronize: expected a job with a fixed number of workers; "
                "in a job that continues with fewer (min_contributors, TFDIST_ELASTIC) fit alone "
                "ends rounds"
            )
        # Also restored rounds in which this process has made no step.
        self.take_restored()
        for running in list(self._rounds.values()):
            running.end_early()

    def residuals(self) -> dict[str, float]:
        """The rule's residuals at the last synchronization of the last kind of step, by name."""
        return {k: v for running in self._rounds.values() for k, v in running.residuals().items()}

    def is_trained(self, variables: Sequence[KerasVariable]) -> bool:
        """Whether an optimizer has been applied to some of the variables in this process."""
        groups = self._by_position(variables).values()
        return any(not self._is_former(group) for group in groups)

    def saved(self, variables: Sequence[KerasVariable], of_all: bool = True) -> Values:
        """The values that another process needs to continue with the training of variables.

        Args:
          variables: a model's variables, in its order.
          of_all: with the values of all workers, which all call this; else this worker's.
        """
        self.take_restored()
        found: dict[str, tf.Variable | tf.Tensor] = {}
        positions = {id(of_tensorflow(v)): i for i, v in enumerate(variables)}

        def positions_of(trained: Sequence[KerasVariable]) -> tf.Tensor:
            return tf.constant([positions.get(id(variable), -1) for variable in trained], tf.int64)

        for position, group in self._by_position(variables).items():
            for running in group.rounds:
                running.settle()
            group.copy_anchor()
            of_group = self._saved_of(group)
            of_group["variables"] = positions_of(group.variables)
            for i, running in enumerate(group.rounds):
                firsts = [other.variables[0] for other in running.groups]
                of_group[f"round/{i}/groups"] = positions_of(firsts)
            found |= _below(str(position), of_group)
        if found:
            found["asked"] = self.asked
        # Outside of units of work a member of an elastic job needs no other one.
        is_alone = not of_all or self._job is not None
        return values_of_all(found, None if is_alone else self._communicator)

    def restore(self, variables: Sequence[KerasVariable], values: Values) -> None:
        """Lets the training of variables continue from the result of `saved`.

        Groups of optimizers that were not applied before take their values in `take_restored`, or
        before the first step.
        """
        if self._communicator is None or self._job is not None:
            mine = values_of_one(values, 0, 1)
        else:
            mine = values_of_one(values, self._communicator.rank, self.workers)
        if "asked" in mine:
            self.asked.assign(mine.pop("asked"))
        ids = {id(of_tensorflow(variable)) for variable in variables}
        for former, group in self._former_groups():
            if any(id(variable) in ids for variable in group.variables):
                self._forget(former, group)
        existing = self._by_position(variables)
        positions = sorted({int(name.split("/")[0]) for name in mine})
        of_groups = {p: _without(str(p), mine) for p in positions}
        groups = {p: with_positions(p, values) for p, values in of_groups.items()}
        trained = sorted(i for values in groups.values() for i in values["variables"].tolist())
        is_known = all("variables" in values for values in of_groups.values())
        if not is_known and trained != list(range(len(variables))):
            _log.warning(
                "LocalUpdateStrategy: expected a checkpoint that names the trained variables, or "
                "of an earlier version with all %d, received an earlier version's with %d: the "
                "steps of its open round are lost, and training begins a new round",
                *(len(variables), len(trained)),
            )
            groups = {}
        for position in list(groups):
            if position in existing:
                existing[position].restored = groups.pop(position)
                self._restore_group(existing[position])
        references = [weakref.ref(of_tensorflow(variable)) for variable in variables]
        self._restored = [r for r in self._restored if not ids & {id(v()) for v in r.variables}]
        if groups:
            self._restored.append(_Restored(references, groups))

    def take_restored(self) -> None:
        """Gives variables and rounds what was restored, though no optimizer was applied yet.

        Call it when the variables have the values of the same checkpoint.
        """
        restored, self._restored = self._restored, []
        for each in restored:
            variables = [reference() for reference in each.variables]
            made: dict[int, AnyGroup] = {}
            for position, values in each.groups.items():
                trained = [variables[i] if i >= 0 else None for i in values["variables"].tolist()]
                shapes = [anchor.shape for anchor in anchors_in(values)]
                if [None if v is None else tuple(v.shape) for v in trained] == shapes:
                    made[position] = self._former_group(trained, values)
                elif any(variable is not None for variable in trained):
                    _log.warning(
                        "LocalUpdateStrategy: expected a checkpoint of variables of the shapes %s, "
                        "received %s: their training begins a new round",
                        [None if v is None else tuple(v.shape) for v in trained],
                        shapes,
                    )
            for position, group in made.items():
                i = 0
                while (of_round := each.groups[position].get(f"round/{i}/groups")) is not None:
                    if any(other not in made for other in of_round.tolist()):
                        break
                    self._round([made[other] for other in of_round.tolist()])
                    i += 1
                assert len(group.rounds) == i

    def _former_group(self, variables: list[KerasVariable], values: Values) -> AnyGroup:
        former = without_strategy(lambda: FormerOptimizer(values))
        group = self._new_group(former, variables)
        self._groups[former] = {tuple(id(variable) for variable in variables): group}
        self._former.append(former)
        group.restored = values
        self._restore_group(group)
        if isinstance(group, AsynchronousGroup):
            group.join()
        return group

    def _former_groups(self) -> list[tuple[FormerOptimizer, AnyGroup]]:
        return [
            (former, group) for former in self._former for group in self._groups[former].values()
        ]

    def _is_former(self, group: AnyGroup) -> bool:
        return any(group is other for _, other in self._former_groups())

    def _forget(self, former: FormerOptimizer, group: AnyGroup) -> None:
        # At once: the garbage collector comes later, and a synchronization would end its rounds.
        for running in group.rounds:
            self._rounds.pop(tuple(id(other) for other in running.groups), None)
        group.rounds.clear()
        self._former.remove(former)
        del self._groups[former]

    def _by_position(self, variables: Sequence[KerasVariable]) -> dict[int, AnyGroup]:
        """The newest groups of variables, by the position of a group's first variable."""
        positions = {id(of_tensorflow(v)): i for i, v in enumerate(variables)}
        groups = [group for of_one in self._groups.values() for group in of_one.values()]
        firsts = [(id(group.variables[0]), group) for group in groups]
        return {positions[first]: group for first, group in firsts if first in positions}

    def _saved_of(self, group: AnyGroup) -> dict[str, tf.Variable | tf.Tensor]:
        found: dict[str, tf.Variable | tf.Tensor] = {**group.saved()}
        for i, running in enumerate(group.rounds):
            found |= _below(f"round/{i}", running.saved())
        for i, state in enumerate(self._feedback(group)):
            found |= _below(f"feedback/{i}", state.saved())
        return found

    def _feedback(self, group: AnyGroup) -> list[GradientState]:
        if self._compressor is None:
            return []
        states = [self._compressor.state_of(anchor) for anchor in group.anchors]
        return [state for state in states if state is not None]

    def _restore_group(self, group: AnyGroup) -> None:
        values = group.restored
        if not values:
            return
        for i, state in enumerate(self._feedback(group)):
            state.restore(_without(f"feedback/{i}", values))
        for running in group.rounds:
            self._restore_round(running)
        without_strategy(lambda: _assign(group.saved(), values))
        if isinstance(group, Group) and values.get("are_reset/0", False):
            without_strategy(group.reset_slots)
        if isinstance(group, AsynchronousGroup):
            group.publish()

    def _take_former(self, group: AnyGroup) -> AnyGroup | None:
        """Gives a new group the values of the group that was restored for its variables.

        Returns:
          The restored one; `None` if there is none.
        """
        self.take_restored()
        ids = [id(variable) for variable in group.variables]
        for former, other in self._former_groups():
            others = [id(variable) for variable in other.variables]
            if ids == others:
                variables = self._saved_of(other)
                group.restored = without_strategy(functools.partial(_values, variables))
                self._forget(former, other)
                return other
            if not set(ids).isdisjoint(others):
                # The program trains other variables now. Its workers continue from the same values.
                for running in list(other.rounds):
                    running.end_early()
                self._forget(former, other)
        return None

    def _restore_round(self, running: StepRounds) -> None:
        group = running.groups[0]
        of_round = _without(f"round/{group.rounds.index(running)}", group.restored)
        if of_round:
            without_strategy(lambda: _assign(running.saved(), of_round))

    def _group(self, optimizer: KerasOptimizer, variables: list[KerasVariable]) -> AnyGroup:
        groups = self._groups.setdefault(optimizer, {})
        key = tuple(id(variable) for variable in variables)
        if key not in groups:
            if getattr(optimizer, "use_ema", False):
                raise ValueError(
                    "LocalUpdateStrategy: expected an optimizer without use_ema, received "
                    f"{optimizer.name!r}: each worker would have moving averages of its own"
                )
            group = self._new_group(optimizer, variables)
            former = self._take_former(group)
            groups[key] = group
            self._restore_group(group)
            if isinstance(group, AsynchronousGroup):
                group.join(former if isinstance(former, AsynchronousGroup) else None)
        return groups[key]

    def _round(self, groups: list[AnyGroup]) -> StepRounds:
        key = tuple(id(group) for group in groups)
        found = self._rounds.get(key)
        if found is None:
            found = self._rounds[key] = self._new_round(groups)
            groups[0].rounds.append(found)
            self._restore_round(found)
        return found

    def _new_group(self, optimizer: KerasOptimizer, variables: list[KerasVariable]) -> AnyGroup:
        rule = self._rule
        if isinstance(rule, StreamingDiLoCo):
            return FragmentedGroup(optimizer, variables, rule, self.workers, rule.fragments)
        if self._centre is not None:
            return AsynchronousGroup(optimizer, variables, rule, self.workers, self._centre)
        return Group(optimizer, variables, rule, self.workers, self._slots)

    def _new_round(self, groups: list[AnyGroup]) -> StepRounds:
        arguments = (
            groups,
            self._averaged,
            self._communicator,
            self.sync_every,
            self._warmup_steps,
            self._timeout,
            self._rule.residual_names,
            self._compressor,
        )
        rule = self._rule
        if isinstance(rule, StreamingDiLoCo):
            return StreamingRound(rule.fragments, rule.delay, *arguments)
        if self._centre is not None:
            return AsynchronousRound(*arguments)
        if self._job is not None:
            return ElasticRound(*arguments)
        return StepRounds(*arguments)

    def _averaged(self) -> list[tf.Variable]:
        return [component(variable) for variable in self._statistics]


def _below(prefix: str, found: dict[str, tf.Variable]) -> dict[str, tf.Variable]:
    return {f"{prefix}/{name}": variable for name, variable in found.items()}


def _without(prefix: str, values: Values) -> Values:
    prefix += "/"
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}


def _values(variables: dict[str, tf.Variable | tf.Tensor]) -> Values:
    return {name: variable.numpy() for name, variable in variables.items()}


def _assign(variables: dict[str, tf.Variable], values: Values) -> None:
    for name, variable in variables.items():
        if name in values and values[name].shape == tuple(variable.shape):
            variable.assign(values[name])


def _graph() -> tf.Graph | None:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _belongs(graph: tf.Graph | None, outer: tf.Graph | None) -> bool:
    """Whether code in `graph` runs once in each execution of `outer`, apart from branches."""
    while graph is not outer and isinstance(graph, ControlFlowFuncGraph):
        graph = graph.outer_graph
    return graph is outer


def _times(gradient: Gradient, factor: int) -> Gradient:
    if isinstance(gradient, tf.IndexedSlices):
        gradient = unique_slices(gradient)
        values = gradient.values * tf.cast(factor, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


if TYPE_CHECKING:
    _of_keras: type[LocalTraining] = LocalUpdates
