"""The state that members of an elastic job train: it is kept, brought back and made equal.

    state.commit()      values --> copy in memory        after each step, or every few steps
    state.restore()     values <-- copy                  after the loss of a member
    state.sync()        values <-- those of the member with the newest copy

`tfdist.elastic.run` calls `restore` and `sync`. A commit is a unit of work of `tfdist.elastic.job`:
two members differ by one commit at most if all members communicate between two commits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

from tfdist import ops
from tfdist._types import KerasModel, KerasOptimizer, KerasVariable
from tfdist.elastic.atomic_step import read
from tfdist.elastic.job import ElasticJob, Unit
from tfdist.elastic.notice import ElasticTraining
from tfdist.elastic.plain_values import decode, encode
from tfdist.elastic.values import assign_values, broadcast_bytes, broadcast_values
from tfdist.errors import TfdistError
from tfdist.job import process

_API_NAME = "tfdist.elastic"


_SYNC = Unit("the state's sync", lambda: None, admits=True, is_whole=True, equalizes=True)


class HostsUpdatedInterrupt(Exception):
    """A member joins or leaves: ends the function of `tfdist.elastic.run`, which calls it again.

    `commit` and `check_host_updates` raise it on all members in the same place. No work is lost.
    """


def elastic_job() -> ElasticJob | None:
    """Returns this process's elastic job; `None` in any other job."""
    members = process.current.members
    return members if isinstance(members, ElasticJob) else None


class ObjectState:
    """Values that are equal on all members of an elastic job.

    Each value is an attribute: `state.epoch`. Values are None, bools, numbers, texts, arrays of
    NumPy, and lists, tuples and dicts of them. They travel as JSON and arrays, never as pickles.

    Without an elastic job `sync` gives all ranks the values of rank 0, and commits are local.

    Args:
      **values: the values at the beginning, by name.

    Raises:
      ValueError: a name belongs to a method or to another attribute.
      TypeError: a value is something else; names it.

    Example:

    ```python
    tfdist.init()
    state = tfdist.elastic.ObjectState(epoch=0, history=[])
    ```
    """

    def __init__(self, **values: object) -> None:
        for name in values:
            if name.startswith("_") or hasattr(self, name):
                raise ValueError(
                    f"{self._name}: expected names of values that are no attributes of a state, "
                    f"received {name!r}"
                )
        self._names = tuple(values)
        self._job: ElasticJob | None = None
        self._reset_callbacks: list[Callable[[], object]] = []
        for name, value in values.items():
            setattr(self, name, value)
        self._keep()

    def commit(self) -> None:
        """Saves the values, and ends the function of `run` if members join or leave.

        All members call it in the same place.

        Raises:
          TypeError: a value is of an unsupported type; names it.
          HostsUpdatedInterrupt: a member joins or leaves.
          tfdist.errors.Preempted: this process leaves because of SIGTERM, or all do because too few
            would be left.
          tf.errors.OpError: a member was lost.
        """
        self.save()
        self._check_host_updates(is_saved=True)

    def check_host_updates(self) -> None:
        """Ends the function of `run` if members join or leave; the present values are kept.

        All members call it in the same place, where their values are equal.

        Raises:
          Exception: as for `commit`.
        """
        self._check_host_updates(is_saved=False)

    def save(self) -> None:
        """Copies the values in memory; all members call it in the same place.

        Raises:
          TypeError: a value is of an unsupported type; names it.
        """
        self._keep()
        if self._job is not None:
            self._job.count_unit(_SYNC)

    def restore(self) -> None:
        """Brings the values of the last `save` or `sync` back; needs no other member."""
        self._take(self._kept)

    def sync(self) -> None:
        """Gives all members the values of the member with the newest commit, and saves them.

        All members call it together; `run` does at the beginning, and after each change of the
        members. A newcomer waits here until the members take it in. If the members have changed,
        callbacks of `register_reset_callbacks` are called, also on a newcomer.

        Raises:
          tfdist.errors.NotInitializedError: before `tfdist.init()` or a strategy.
          tfdist.errors.RendezvousTimeoutError: too few members are left, or none answers.
          tfdist.errors.TfdistError: the members have different values or variables.
          tf.errors.OpError: a member was lost; the next call forms the next generation.
        """
        job = elastic_job()
        if job is None:
            self._take_from_rank_0()
            self._keep()
            return
        self._job, job.state = job, _SharedState(self)
        has_changed = job.synchronize(_SYNC)
        self._keep()
        if has_changed:
            self.on_reset()
            self._keep()

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Registers functions to call each time the members have changed, such as a new rate.

        They change the state in the same way on all members, and may use `tfdist.size()`.

        Args:
          callbacks: functions without arguments.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Calls the functions of `register_reset_callbacks`, when the members have changed."""
        for callback in self._reset_callbacks:
            callback()

    @property
    def _name(self) -> str:
        return f"{_API_NAME}.{type(self).__name__}"

    def _check_host_updates(self, is_saved: bool) -> None:
        job = self._job
        if job is None:
            return
        with tf.device("/device:CPU:0"):
            own = tf.constant(job.flags(), tf.float64)
            flags = ops.all_reduce(own, job.communicator, label="arrivals and departures").numpy()
        job.take_flags(flags)
        if job.ends or job.leaves:
            ElasticTraining(job).stop("at a commit", lambda: "the program saves nothing by itself")
        if job.change_is_planned:
            if not is_saved:
                self.save()
            raise HostsUpdatedInterrupt(
                f"{job.cluster.task_name}: the members change: the function of "
                f"{_API_NAME}.run ends here, and is called again"
            )

    def _values(self) -> bytes:
        """The present values."""
        return encode({name: getattr(self, name) for name in self._names}, self._name)

    def _take(self, kept: _Kept) -> None:
        assign_values(*kept.variables)
        self._take_values(kept.values)

    def _take_values(self, content: bytes) -> None:
        values = decode(content)
        if tuple(values) != self._names:
            raise TfdistError(
                f"{self._name}: expected the values {', '.join(self._names) or '(none)'}, received "
                f"{', '.join(values) or '(none)'} from another member: do all run the same program?"
            )
        for name, value in values.items():
            setattr(self, name, value)

    def _keep(self) -> None:
        handles = self._handles()
        # TensorFlow copies a variable's buffer when it writes to a variable that is held elsewhere.
        self._kept = _Kept(self._values(), (handles, [read(handle) for handle in handles]))

    def _take_from_rank_0(self) -> None:
        communicator = process.communicator(f"{self._name}.sync")
        label = "the state of rank 0"
        content = broadcast_bytes(self._values(), communicator, 0, label)
        handles = self._handles()
        values = broadcast_values(handles, communicator, 0, label)
        if communicator.rank != 0:
            assign_values(handles, values)
            self._take_values(content)

    def _handles(self) -> list[tf.Tensor]:
        """The resources of the variables, in the same order on all members."""
        return []


class TensorFlowState(ObjectState):
    """Variables, and other values, that are equal on all members of an elastic job.

    Args:
      variables: of TensorFlow or Keras, the same on all members: of the model and the optimizer.
      **values: as for `ObjectState`.

    Raises:
      TypeError: something in `variables` is no variable; a value is of an unsupported type.
      ValueError: as for `ObjectState`.

    Example:

    ```python
    weights = tf.Variable(tf.zeros([8]))
    state = tfdist.elastic.TensorFlowState(variables=[weights], step=0)
    ```
    """

    def __init__(self, variables: Iterable[KerasVariable], **values: object) -> None:
        self.variables = list(variables)
        super().__init__(**values)

    def _handles(self) -> list[tf.Tensor]:
        return _resources(self.variables, self._name)


class TensorFlowKerasState(ObjectState):
    """The weights of a model, its optimizer's variables, and other values.

    Random seeds, such as a `Dropout` layer's, and metrics stay each member's own.

    Args:
      model: of Keras 3 or tf_keras, built.
      optimizer: `None` means the optimizer of `model.compile`, if there is one.
      **values: as for `ObjectState`.

    Raises:
      TypeError: the model is no model; a value is of an unsupported type.
      ValueError: the model is not built; or as for `ObjectState`.

    Example:

    ```python
    state = tfdist.elastic.TensorFlowKerasState(model, optimizer, epoch=0, batch=0)
    ```
    """

    def __init__(
        self, model: KerasModel, optimizer: KerasOptimizer | None = None, **values: object
    ) -> None:
        if not hasattr(model, "trainable_variables") or not hasattr(model, "weights"):
            raise TypeError(f"{self._name}: expected a model of Keras, received {model!r}")
        if not getattr(model, "built", True):
            raise ValueError(
                f"{self._name}: expected a model with weights, received {model.name!r}, which is "
                "not built: give it a keras.Input, or call model.build(input_shape)"
            )
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        _build(self.optimizer, model)
        super().__init__(**values)

    def restore(self) -> None:
        """See `ObjectState.restore`; gradients that were accumulated for the next step are lost."""
        super().restore()
        self._reset_accumulation()

    def sync(self) -> None:
        """See `ObjectState.sync`; gradients that were accumulated for the next step are lost."""
        super().sync()
        self._reset_accumulation()

    def _reset_accumulation(self) -> None:
        inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        reset = getattr(inner, "reset_accumulation", None)  # of a tfdist.DistributedOptimizer
        if reset is not None:
            reset()

    def _handles(self) -> list[tf.Tensor]:
        of_optimizer = getattr(self.optimizer, "variables", ())
        if callable(of_optimizer):  # of tf_keras.optimizers.legacy
            of_optimizer = of_optimizer()
        return _resources([*self.model.weights, *of_optimizer], self._name)


@dataclasses.dataclass(frozen=True)
class _Kept:
    """A copy of a state.

    Attributes:
      values: from `encode`.
      variables: resources, and the value of each.
    """

    values: bytes
    variables: tuple[Sequence[tf.Tensor], Sequence[tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class _SharedState:
    """A user's state as a `tfdist.elastic.job.TrainedState`."""

    state: ObjectState

    def handles(self) -> Sequence[tf.Tensor]:
        return self.state._handles()

    def describe(self) -> bytes:
        return self.state._values()

    def restore(self, content: bytes) -> None:
        self.state._take_values(content)

    def save(self) -> None:
        """Does nothing: the program decides what to save to files, and when."""


def _build(optimizer: KerasOptimizer, model: KerasModel) -> None:
    """Makes the optimizer's variables, which a newcomer receives before its first step."""
    build = getattr(optimizer, "build", None) or getattr(optimizer, "_create_all_weights", None)
    if build is None or getattr(optimizer, "built", False):
        return
    with model.distribute_strategy.scope():
        build(model.trainable_variables)


def _resources(variables: Sequence[KerasVariable], owner: str) -> list[tf.Tensor]:
    found: dict[int, tf.Tensor] = {}
    for position, variable in enumerate(variables):
        value = variable if isinstance(variable, tf.Variable) else getattr(variable, "value", None)
        if not isinstance(value, tf.Variable):
            raise TypeError(
                f"{owner}: expected variables, received {type(variable).__name__} at position "
                f"{position}"
            )
        is_distributed = isinstance(value, tf.distribute.DistributedValues)
        for part in value.values if is_distributed else (value,):
            found[id(part.handle)] = part.handle
    return list(found.values())
