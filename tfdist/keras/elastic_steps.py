"""Steps of Keras 3 and tf_keras as units of work of an elastic job.

A step takes a global batch. Its rows are cut among the members that are alive when it is made, and
again when it is repeated with others. It is traced once, for any number of rows.

Metrics, and other variables that replicas have of their own until they are read
(`tf.VariableSynchronization.ON_READ`), are made equal on all members within the step. So the state
after a step is the same on all members, reading it needs no collective, and a member that dies
takes nothing with it:

    sums, as of metrics      replica 0 of each member has the sum over all replicas of all members
    means, as of averages    all replicas have the mean

A step of training begins with the scalars that callbacks may have set, such as the learning rate:
all members take the values of rank 0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from tfdist import ops
from tfdist._types import KerasModel, Logs, Nested, StepFunction
from tfdist.data.cut.ahead import GlobalBatch
from tfdist.data.shares import rows_between
from tfdist.elastic.atomic_step import AtomicStep, read, type_of, written
from tfdist.elastic.job import ElasticJob, Unit
from tfdist.elastic.values import assign_values

# The structure of values of several devices, and the class of variables of which each replica has
# its own value.
from tfdist.internals.tensorflow import SyncOnReadVariable, regroup
from tfdist.keras.elastic_state import state_of_newcomer
from tfdist.keras.hooks.row_weights import knowing_rows
from tfdist.keras.models import (
    metrics_variables,
    model_variables,
    optimizer_variables,
    read_results,
    tf_variable,
)
from tfdist.keras.strategies import ModelTables, tables_of
from tfdist.keras.workers import is_table
from tfdist.ops.collectives.world import world


class ElasticStep:
    """One kind of step of a model: of training, of evaluation, or of prediction.

    Args:
      model: the model.
      job: the members.
      name: of the step, such as "train_step", the same on all members.
      step: takes a replica's share of a batch; returns a structure of tensors.
      admits: whether newcomers can join before such a step.
      gathers: whether the result has a row for each row of the batch; else it is a dict of logs.
      adds_numbers: whether numbers in the logs that are no metrics are added over the replicas, as
        tf_keras does; else they are the mean of the members' first replicas.

    Raises:
      ValueError: the model's steps run eagerly.
    """

    def __init__(
        self,
        model: KerasModel,
        job: ElasticJob,
        name: str,
        step: StepFunction,
        *,
        admits: bool = False,
        gathers: bool = False,
        adds_numbers: bool = False,
    ) -> None:
        if model.run_eagerly and not gathers:
            raise ValueError(
                f"elastic training of {model.name!r}: expected run_eagerly=False, received True: "
                "only a compiled step leaves no trace when it fails"
            )
        self._model = model
        self._job = job
        self._name = name
        self._step = step

        # A function of its own: steps of one function count as training together.
        def read_step(batch: Nested) -> Nested:
            # Replicas may run in threads of their own.
            with knowing_rows(self._rows):
                return read_results(step(batch))

        self._read_step = read_step
        self._admits = admits
        self._gathers = gathers
        self._adds_numbers = adds_numbers
        self._atomic = AtomicStep()
        self._functions: dict[
            tuple[tf.TypeSpec, ...], tf.types.experimental.PolymorphicFunction
        ] = {}
        # Scalars that are variables, but none of the model or its optimizer, in a fixed order.
        self._further_scalars: list[tf.Tensor] = []
        # Of the batch of which the step is being traced.
        self._rows: tf.Tensor | None = None

    def run(self, batch: Nested, where: str, is_first: bool = True) -> Nested:
        """Makes a step together with all members.

        Args:
          batch: the global batch, a `GlobalBatch` or its tensors.
          where: the step's name in messages.
          is_first: whether it is the first step of an execution, between which callbacks are
            called, and members leave and join.

        Returns:
          The logs of all members together, or the rows of the result.

        Raises:
          Exception: as for `ElasticJob.run`.
        """
        batch = batch if isinstance(batch, GlobalBatch) else GlobalBatch(batch)
        newcomer = state_of_newcomer(self._job)
        if newcomer is not None:
            if not self._admits:
                return self._alone(batch)
            newcomer.take_again()
        step = self.step_on(batch)
        tables = _tables_of(self._model)

        def call() -> Nested:
            if tables is not None:
                tables.begin_unit()
            result, flags = step(self._job.flags())
            return result, flags.numpy()

        unit = Unit(
            where,
            call,
            undo=self._atomic.undo,
            written=lambda: self._atomic.written,
            healed=lambda: (self._healed(batch), (0.0, 0.0)),
            admits=self._admits and is_first,
            lets_leave=is_first,
        )
        result, flags = self._job.run(unit)
        if self._admits:
            self._job.take_flags(flags)
        return result

    def step_on(self, batch: GlobalBatch) -> Callable[[Sequence[float]], Nested]:
        """Returns a function that takes this member's flags, and makes the step on a batch."""
        leaves, structure = _leaves(batch.sample)
        function = self._function([tf.type_spec_from_value(leaf) for leaf in leaves], structure)

        def step(flags: Sequence[float]) -> Nested:
            communicator = self._job.communicator
            own, each = self._own(batch, communicator.rank, communicator.size)
            cut = tf.constant([batch.rows or 0, each], tf.int64)
            return function(_leaves(own)[0], cut, tf.constant(flags, tf.float64))

        return step

    def trace(self, spec: Nested) -> tf.types.experimental.ConcreteFunction:
        """Traces the step without running it; returns the concrete function.

        Args:
          spec: the structure of `tf.TypeSpec`s of a batch.
        """
        leaves, structure = _leaves(spec)
        return self._function(leaves, structure).get_concrete_function()

    def further_handles(self) -> list[tf.Tensor]:
        """The resources of variables of the training that the traced step does not use."""
        return []

    def is_private(self, handle: tf.Tensor) -> bool:
        """Whether a resource belongs to a variable which only makes this step atomic."""
        return self._atomic.is_private(handle)

    def _alone(self, batch: GlobalBatch) -> Nested:
        """A newcomer's step of `evaluate` or `predict` in a callback.

        The members have made it before they have let the newcomer join.
        """
        if not self._gathers:
            own, each = self._own(batch, 0, 1)
            share = self._of_devices(own, each)
            self._model.distribute_strategy.run(self._read_step, args=(share,))
        return self._healed(batch)

    def _healed(self, batch: GlobalBatch) -> Nested:
        if self._gathers:
            # The result is no variable, so it did not come with them. No other member is needed.
            whole, _ = self._own(batch, 0, 1)
            return self._model.distribute_strategy.experimental_local_results(self._step(whole))[0]
        return self._model.get_metrics_result()

    def _function(
        self, specs: Sequence[tf.TypeSpec], structure: Callable[[Sequence], Nested]
    ) -> tf.types.experimental.PolymorphicFunction:
        relaxed = [_with_any_rows(spec) for spec in specs]
        key = tuple(relaxed)
        if key not in self._functions:
            before = len(own_variables(self._model)), len(self._scalars())
            function = self._new_function(relaxed, structure)
            concrete = function.get_concrete_function()
            if self._admits:
                self._note_scalars(concrete)
            if (len(own_variables(self._model)), len(self._scalars())) != before:
                # tf_keras makes metrics while it traces a step, and its legacy optimizers make
                # their rates. That trace does not reduce them.
                if not self._functions:
                    self._atomic = AtomicStep()
                function = self._new_function(relaxed, structure)
            self._functions[key] = function
        return self._functions[key]

    def _new_function(
        self, specs: Sequence[tf.TypeSpec], structure: Callable[[Sequence], Nested]
    ) -> tf.types.experimental.PolymorphicFunction:
        def elastic_step(leaves: list, cut: tf.Tensor, flags: tf.Tensor) -> Nested:
            self._atomic.make_atomic(tf.compat.v1.get_default_graph())
            share = self._of_devices(structure(leaves), cut[1])
            return self._traced(share, cut[0] if leaves else None, flags)

        # Keys of collectives contain it.
        elastic_step.__name__ = f"elastic_{self._name}"
        return tf.function(
            elastic_step,
            input_signature=[
                specs,
                tf.TensorSpec([2], tf.int64),
                tf.TensorSpec([2], tf.float64),
            ],
            autograph=False,
        )

    def _traced(self, share: Nested, rows: tf.Tensor | None, flags: tf.Tensor) -> Nested:
        strategy = self._model.distribute_strategy
        if self._admits:
            self._agree_on_scalars()
        self._rows = rows
        own = [] if self._gathers else own_variables(self._model)
        before = [[part.read_value() for part in variable.values] for variable in own]
        tables = _tables_of(self._model)
        trains = self._admits
        with contextlib.nullcontext() if tables is None else tables.unit(trains):
            outputs = strategy.run(self._read_step, args=(share,))
        self._rows = None
        if self._gathers:
            return self._gathered(outputs), flags
        if tables is not None and trains:
            # Only what has been pushed may be committed.
            with tf.control_dependencies(_pushes()):
                flags = tf.identity(flags)
        first = tree.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], outputs
        )
        other = numbers_but_metrics(self._model, first)
        if self._adds_numbers:
            other = {
                name: tf.add_n(strategy.experimental_local_results(outputs[name])) for name in other
            }
        flags, numbers = self._reduce_own(own, before, flags, list(other.values()))
        if tables is not None and trains:
            with tf.control_dependencies([flags]):
                tables.commit()
        return self._of_all(first, dict(zip(other, numbers, strict=True))), flags

    def _scalars(self) -> list[list[tf.Tensor]]:
        """The resources of all variables without dimensions that a callback may set.

        The handles of one variable on several devices are in one list.
        """
        strategy = self._model.distribute_strategy
        found: dict[int, list[tf.Tensor]] = {}
        for variable in (*optimizer_variables(self._model), *model_variables(self._model)):
            value = tf_variable(variable)
            if value.shape.rank == 0 and not isinstance(value, SyncOnReadVariable):
                parts = strategy.experimental_local_results(value)
                found[id(parts[0].handle)] = [part.handle for part in parts]
        return [*found.values(), *([handle] for handle in self._further_scalars)]

    def _note_scalars(self, concrete: tf.types.experimental.ConcreteFunction) -> None:
        """Notes variables of the user's own that a traced step reads, such as a loss's weight."""
        own = {
            id(part.handle)
            for variable in map(tf_variable, metrics_variables(self._model))
            for part in self._model.distribute_strategy.experimental_local_results(variable)
        }
        own |= {id(handle) for parts in self._scalars() for handle in parts}
        own |= {id(handle) for handle in self._atomic.written}
        further = []
        for handle in concrete.captured_inputs:
            found = type_of(handle) if handle.dtype == tf.resource else None
            if (
                found is not None
                and found[1].rank == 0
                and id(handle) not in own
                and not self.is_private(handle)
            ):
                further.append(handle)
        # In the order of their creation: the order of captures differs between processes.
        self._further_scalars += sorted(further, key=lambda handle: handle._id)

    def _agree_on_scalars(self) -> None:
        """Gives the scalars that callbacks may have set the values that they have on rank 0."""
        scalars = self._scalars()
        if not scalars:
            return
        own = [read(parts[0]) for parts in scalars]
        values = ops.broadcast(
            own, self._job.communicator, label=f"rates and other scalars of {self._name}"
        )
        for parts, value in zip(scalars, values, strict=True):
            assign_values(parts, [value] * len(parts))

    def _own(self, batch: GlobalBatch, rank: int, size: int) -> tuple[Nested, int]:
        """A member's rows of a batch, and the number of rows of a full device."""
        devices = len(self._model.distribute_strategy.extended.worker_devices)
        return batch.share(size * devices, rank * devices, devices)

    def _of_devices(self, own: Nested, each: int | tf.Tensor) -> Nested:
        """This member's rows of a batch, for each of its devices."""
        devices = len(self._model.distribute_strategy.extended.worker_devices)
        if devices == 1:
            return own
        parts = [rows_between(own, i * each, (i + 1) * each) for i in range(devices)]
        return regroup(tuple(parts), always_wrap=True)

    def _reduce_own(
        self,
        own: Sequence[SyncOnReadVariable],
        before: Sequence[Sequence],
        flags: tf.Tensor,
        numbers: Sequence[tf.Tensor],
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Makes variables that the step has written equal on all members.

        Returns:
          The sum of the members' flags, and the sums or the means of their numbers.
        """
        pairs = changed_by_step(own, before)
        contributions = [_contribution(variable, old) for variable, old in pairs]
        flags, *reduced = ops.fused_all_reduce(
            [flags, *numbers, *contributions],
            self._job.communicator,
            label=f"metrics of {self._name}",
        )
        _, size = world(self._job.communicator)
        totals = reduced[len(numbers) :]
        for (variable, old), total in zip(pairs, totals, strict=True):
            _assign_total(variable, old, total, size)
        sums = reduced[: len(numbers)]
        if self._adds_numbers:
            return flags, sums
        return flags, [total / tf.cast(size, total.dtype) for total in sums]

    def _of_all(self, outputs: Nested, numbers: dict[str, tf.Tensor]) -> Nested:
        """The logs of all members in place of this member's."""
        if not isinstance(outputs, dict):
            return outputs
        strategy = self._model.distribute_strategy
        results = strategy.run(lambda: read_results(self._model.get_metrics_result()))
        metrics = {
            name: strategy.experimental_local_results(value)[0] for name, value in results.items()
        }
        return {
            name: metrics.get(name, numbers.get(name, value)) for name, value in outputs.items()
        }

    def _gathered(self, outputs: Nested) -> Nested:
        """The rows of the results of all members, in the order of the batch."""
        strategy = self._model.distribute_strategy
        label = f"the results of {self._name.removesuffix('_step')}"

        def gathered(value: tf.Tensor) -> tf.Tensor:
            parts = strategy.experimental_local_results(value)
            return ops.all_gather(tf.concat(parts, 0), self._job.communicator, label=label)

        return tree.map_structure(gathered, outputs)


def _tables_of(model: KerasModel) -> ModelTables | None:
    """The embedding tables of a model's strategy; `None` if the model cannot have any.

    Raises:
      ValueError: the model is of tf_keras, and has tables.
    """
    if isinstance(model, keras.Model):
        return tables_of(model.distribute_strategy.extended)
    if any(is_table(tf_variable(variable)) for variable in model_variables(model)):
        raise ValueError(
            f"elastic training of {model.name!r}: expected a model of Keras 3, because it has "
            "embedding tables, received one of tf_keras"
        )
    return None


def _pushes() -> list[tf.Operation]:
    """The operations of this function that send gradients of rows."""
    operations = tf.compat.v1.get_default_graph().get_operations()
    return [op for op in operations if op.type == "TfdistPsPush"]


def execution(
    step: ElasticStep, name: str, steps: Callable[[], int], where: Callable[[], str]
) -> Callable[[Iterator], Logs]:
    """Returns what a Keras calls with an iterator of batches: it makes some steps.

    Args:
      step: makes one.
      name: of the step, for messages.
      steps: returns how many.
      where: returns the place in the training, for messages.

    Returns:
      A function that returns the last step's logs; its attribute `elastic_step` is `step`.
    """

    def function(iterator: Iterator) -> Nested:
        logs = None
        of_first = f"{name}, {where()}"
        for step_index in range(steps()):
            try:
                batch = next(iterator)
            except StopIteration:
                if logs is None:
                    raise
                break
            # Within several steps of one execution a newcomer could not begin.
            logs = step.run(batch, of_first, is_first=step_index == 0)
        return logs

    marked: Any = function
    marked.elastic_step = step
    return marked


def predicted(step: ElasticStep, batches: Iterable) -> Nested:
    """Returns the rows that a step predicts for some batches."""
    parts = [step.run(batch, "predict_step") for batch in batches]
    return tf.nest.map_structure(lambda *rows: tf.concat(rows, 0), *parts)


def _leaves(structure: Nested) -> tuple[list, Callable[[Sequence], Nested]]:
    """Returns the leaves that are not `None`, and a function that puts others in their places."""
    flat = tf.nest.flatten(structure)
    indices = [i for i, leaf in enumerate(flat) if leaf is not None]

    def packed(leaves: Sequence) -> Nested:
        filled: list[object] = [None] * len(flat)
        for index, leaf in zip(indices, leaves, strict=True):
            filled[index] = leaf
        return tf.nest.pack_sequence_as(structure, filled)

    return [flat[index] for index in indices], packed


def _with_any_rows(spec: tf.TypeSpec) -> tf.TypeSpec:
    """A spec of any number of rows."""
    if spec.shape.rank in (None, 0):
        return spec
    shape = tf.TensorShape([None, *spec.shape[1:]])
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(
            shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype, spec.flat_values_spec
        )
    return type(spec)(shape, spec.dtype)


def own_variables(model: KerasModel) -> list[SyncOnReadVariable]:
    """The variables of which replicas have values of their own."""
    found: dict[int, SyncOnReadVariable] = {}
    variables = [
        *model_variables(model),
        *optimizer_variables(model),
        *metrics_variables(model),
    ]
    for value in map(tf_variable, variables):
        if (
            isinstance(value, SyncOnReadVariable)
            and value.aggregation != tf.VariableAggregation.NONE
        ):
            found[id(value)] = value
    return list(found.values())


def numbers_but_metrics(model: KerasModel, outputs: Nested) -> dict[str, tf.Tensor]:
    """Scalars that a `train_step` of the user's returns besides the results of metrics."""
    if not isinstance(outputs, dict):
        return {}
    metrics = {metric.name for metric in model.metrics}
    return {
        name: value
        for name, value in outputs.items()
        if name not in metrics
        and tf.is_tensor(value)
        and value.shape.rank == 0
        and value.dtype.is_floating
    }


def changed_by_step(
    own: Sequence[SyncOnReadVariable], before: Sequence[Sequence[tf.Tensor]]
) -> list[tuple[SyncOnReadVariable, Sequence[tf.Tensor]]]:
    """The variables that the function that is being traced writes, each with its `before`."""
    graph = tf.compat.v1.get_default_graph()
    changed = {resource.ref() for op in graph.get_operations() for resource in written(op)}
    return [
        (variable, old)
        for variable, old in zip(own, before, strict=True)
        if any(graph.capture(part.handle).ref() in changed for part in variable.values)
    ]


def _contribution(variable: SyncOnReadVariable, before: Sequence[tf.Tensor]) -> tf.Tensor:
    """This member's part of a sum over all members."""
    after = [part.read_value() for part in variable.values]
    if variable.aggregation == tf.VariableAggregation.SUM:
        return tf.add_n(after) - tf.add_n(list(before))
    if variable.aggregation == tf.VariableAggregation.MEAN:
        return tf.add_n(after)
    raise NotImplementedError(
        f"elastic training: expected aggregation 'sum' or 'mean' of {variable.name}, of which "
        f"replicas have values of their own, received {variable.aggregation}"
    )


def _assign_total(
    variable: SyncOnReadVariable, before: Sequence[tf.Tensor], total: tf.Tensor, size: tf.Tensor
) -> None:
    first, *others = variable.values
    if variable.aggregation == tf.VariableAggregation.SUM:
        first.assign(tf.add_n(list(before)) + total)
        for part in others:
            part.assign(tf.zeros_like(total))
        return
    mean = tf.cast(total / tf.cast(size * len(variable.values), total.dtype), total.dtype)
    for part in (first, *others):
        part.assign(mean)
