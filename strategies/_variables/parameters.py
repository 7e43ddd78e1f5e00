"""The variables that a worker shares with the others through the parameter servers."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdist._types import Nested
from tfdist.observe.metrics import counters
from tfdist.ops.ps.client import ParameterClient
from tfdist.ops.ps.optimizer_config import OptimizerConfig
from tfdist.ops.ps.table_config import TableConfig
from tfdist.ops.ps.variable_handles import TableHandle
from tfdist.strategies._variables.graphs import graph_of, in_graph_of_tensorflow_1, outermost_graph
from tfdist.strategies._variables.lookup_groups import LookupGroups
from tfdist.strategies._variables.placement import Placement, renamed
from tfdist.strategies._variables.server_variable import ServerVariable

if TYPE_CHECKING:
    from tfdist.keras.strategies import Servers


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter's description.

    Args:
      name: the same in all workers.
      shape: of the variable.
      dtype: of the variable.
      placed_as: the name that determined its placement on the servers: its own, or the name of the
        variable whose slot it is.
    """

    name: str
    shape: tuple[int, ...]
    dtype: tf.DType
    placed_as: str


# The names that this process has used at the servers of a client, whichever strategy has made the
# variables: another one's variables would begin with the values of the first.
_names_of: weakref.WeakKeyDictionary[ParameterClient, collections.Counter[str]]
_names_of = weakref.WeakKeyDictionary()
_names_lock = threading.Lock()


class Parameters:
    """Registers the parameters of one worker, pulls them and pushes them.

    Args:
      client: the connections to the servers.
      placement: the servers of each variable.
      is_chief: whether this worker's changes outside of a step reach the servers.
      partitioner: the numbers of parts that variables are split into; by default `placement`
        decides.
      trainings: number of trainings of each model by this process so far.
      tables_on: the processes that hold embedding tables, "servers" or "workers"; both if they are
        the same process.
    """

    def __init__(
        self,
        client: ParameterClient,
        placement: Placement,
        is_chief: bool,
        partitioner: Callable | None = None,
        trainings: dict[str, int] | None = None,
        tables_on: Sequence[str] = ("servers",),
    ) -> None:
        self.client = client
        self.tables_on = tuple(tables_on)
        self._groups = LookupGroups(client)
        self._placement = placement
        # Whether this process has trained an Estimator: then the servers have the newest values.
        self.has_trained = False
        self._is_chief = is_chief
        self._partitioner = partitioner
        self._lock = threading.Lock()
        self._parameters: dict[int, Parameter] = {}
        self._variables: dict[int, weakref.ref[ServerVariable]] = {}
        self._names = _names_of.setdefault(client, collections.Counter())
        self._names_in: weakref.WeakKeyDictionary[tf.Graph, collections.Counter]
        self._names_in = weakref.WeakKeyDictionary()
        self._trainings = {} if trainings is None else trainings
        self._thread = threading.local()
        self._tables: dict[str, tuple[bytes, int]] = {}
        self._agreements = 0

    def unique_name(self, name: str, graph: tf.Graph | None = None) -> str:
        """Returns `name`, with a suffix if there is a variable of this name already.

        Workers run the same program, so a name means the same variable in all of them.

        Args:
          name: of a variable.
          graph: has its own names, which mean the variables of other graphs; `None` for variables
            of this process, also of another strategy.
        """
        name = getattr(self._thread, "prefix", "") + name
        with _names_lock:
            names = self._names
            if graph is not None:
                names = self._names_in.setdefault(graph, collections.Counter())
            names[name] += 1
            count = names[name]
        return name if count == 1 else f"{name}#{count}"

    @contextlib.contextmanager
    def training_of(self, model: str) -> Iterator[int]:
        """Separates the variables of models whose variables have the same names.

        Args:
          model: graphs made within for the same model share their variables.

        Yields:
          The number of this process's trainings of the model, including this one.
        """
        self._trainings[model] = self._trainings.get(model, 0) + 1
        index = list(self._trainings).index(model)
        self._thread.prefix = f"model{index}/" if index else ""
        try:
            yield self._trainings[model]
        finally:
            self._thread.prefix = ""

    def add(
        self, name: str, shape: Sequence[int], dtype: tf.DType, like: ServerVariable | None = None
    ) -> int:
        """Registers a parameter and returns its id.

        Args:
          name: from `unique_name`.
          shape: fully defined.
          dtype: a floating or signed integer type.
          like: the variable whose slot it is; the slot is placed with it if the shapes are equal.
        """
        shape = tuple(shape)
        placed_as = name
        if like is not None and tuple(like.shape) == shape and like.dtype == dtype:
            placed_as = self._parameters[like.parameter].placed_as
        parts = None
        if self._partitioner is not None and shape:
            parts = self._partitioner(shape=tf.TensorShape(shape), dtype=dtype)[0]
        shards = self._placement.shards(placed_as, shape, dtype.size, parts)
        if placed_as != name:
            shards = renamed(shards, name)
        parameter = self.client.parameters.add(name, dtype, shards)
        self._parameters[parameter] = Parameter(name, shape, dtype, placed_as)
        return parameter

    def add_table(self, name: str, config: TableConfig, resets_slots: bool = False) -> int:
        """Registers an embedding table, which the servers create, and returns its id.

        Args:
          name: the same in all workers.
          config: the same in all workers.
          resets_slots: as in `ParameterClient.create_table`.

        Raises:
          ValueError: this process, or another worker, has another table of this name.
        """
        content = bytes(config)
        if name not in self._tables:
            try:
                table = self.client.tables.create(name, config, resets_slots)
            except tf.errors.InvalidArgumentError as error:
                # Converted, because Keras wraps the errors of layers and cannot construct this one.
                raise ValueError(
                    f"embedding table {name!r}: expected the same arguments in all workers: "
                    f"{error.message}"
                ) from None
            self._tables[name] = (content, table)
        known, table = self._tables[name]
        if known != content:
            raise ValueError(
                f"embedding table {name!r}: expected the same arguments for the same name, but "
                "there is a table of this name that was made with others"
            )
        return table

    def check_name(self, name: str) -> None:
        """Checks the name of a table that a layer has made by itself, where all workers meet.

        Args:
          name: the layer's variable.

        Raises:
          ValueError: on all workers: one of them makes another table at the same time.
        """

    def set_cache(self, name: str, table: int, rows: int, steps: int) -> None:
        """Caches rows of a table on this worker, as `client.set_cache`.

        Args:
          name: the table's name, for messages.
          table: its id.
          rows: as for `client.set_cache`.
          steps: as for `client.set_cache`.
        """
        self.client.tables.set_cache(table, rows, steps)

    def replica_of_all(self, replica: int) -> int | tf.Tensor:
        """Returns the number of a replica of this process among all workers' replicas.

        Args:
          replica: the number that TensorFlow gives it.
        """
        return replica

    def initial_value(self, parameter: int, value: tf.Tensor) -> tf.Tensor:
        """Returns the servers' value of a parameter; creates it as `value` if they have none."""
        return self.client.parameters.initial_value(parameter, value)

    def first_of_all(self, value: int) -> int:
        """Returns the value of the worker that called first.

        All workers make the same number of calls; the n-th calls of all workers belong together.
        """
        name = f"first_of_all_{self._agreements}"
        self._agreements += 1
        given = tf.constant(value, tf.int64)
        return int(self.initial_value(self.add(name, (), tf.int64), given))

    def adopt(
        self, variable: tf.Variable, parameter: int, kind: type[ServerVariable] = ServerVariable
    ) -> ServerVariable:
        """Makes a new variable the cache of a parameter."""
        adopted = kind.adopt(variable, self, parameter)
        self._variables[parameter] = weakref.ref(adopted)
        return adopted

    def __getitem__(self, parameter: int) -> Parameter:
        return self._parameters[parameter]

    @property
    def is_chief(self) -> bool:
        """Whether this worker's changes outside of a step reach the servers."""
        return self._is_chief

    @property
    def in_step(self) -> bool:
        """Whether this thread runs a step, or traces one."""
        return getattr(self._thread, "depth", 0) > 0

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A step: pulls all parameters, runs the body, pushes its changes."""
        if self.in_step:
            yield
            return
        self._begin_step()
        with self.unordered_step():
            yield
        self._end_step()

    @contextlib.contextmanager
    def unordered_step(self) -> Iterator[None]:
        """A step without a pull and a push, which the caller adds."""
        self._thread.depth = 1
        self._staged.clear()
        try:
            yield
        finally:
            self._thread.depth = 0

    def step_of_graph(self, compute: Callable[[], Nested]) -> Nested:
        """Adds a step to a TensorFlow 1 graph, which does not order its ops.

        Args:
          compute: adds the ops of the step.

        Returns:
          The result of `compute`; its tensors and operations wait for the push.
        """
        pull = self.pull_all(begins_step=True)
        with tf.control_dependencies([] if pull is None else [pull]), self.unordered_step():
            result = compute()
        of_graph = [r for r in tf.nest.flatten(result) if hasattr(r, "graph")]
        # An assignment returns a variable whose `op` is the assignment.
        with tf.control_dependencies([r.op if hasattr(r, "op") else r for r in of_graph]):
            push = self.push_all()
        if push is None:
            return result

        def after_push(value: Any) -> Any:
            if not hasattr(value, "graph"):
                return value
            with tf.control_dependencies([push]):
                return tf.group(value) if isinstance(value, tf.Operation) else tf.identity(value)

        return tf.nest.map_structure(after_push, result)

    def settle(self) -> None:
        """Waits until the servers have applied this worker's last step, if they wait for others."""

    def touch(self, variable: ServerVariable, read: bool = True) -> None:
        """Prepares a variable for a read or a write.

        Outside of a step, a read fetches the value from the servers. Within a step, a program may
        read a variable that its optimizer has just updated, for example to train two networks in
        turns. It needs the servers' updated value: the step ends here, and another begins.
        """
        if not self.in_step:
            # Only eagerly: a function that is being traced may be called anywhere, or saved.
            if read and tf.executing_eagerly():
                self.client.parameters.pull([variable], begins_step=False)
        elif variable.parameter in self._staged and not in_graph_of_tensorflow_1():
            self._end_step(is_last=False)
            self._begin_step()

    def _begin_step(self) -> None:
        self._staged.clear()
        # The servers count a reduction to the step that was pulled last. If this worker's began
        # after this pull, it would miss the others', which began before.
        with tf.control_dependencies(self._earlier_reductions()):
            self._thread.pull = self.pull_all(begins_step=True)
        self._reductions.clear()
        self._groups.begin()

    def _end_step(self, is_last: bool = True) -> None:
        self._groups.end()
        # Includes variables that were made since the step began.
        self.push_all(is_last)

    def pull_all(self, begins_step: bool) -> tf.Operation | None:
        """Brings all variables up to date; with `begins_step` a step begins."""
        variables = self.variables()
        return self.client.parameters.pull(variables, begins_step) if variables else None

    def push_all(self, ends_step: bool = True) -> tf.Operation | None:
        """Sends the changes of all variables; the last push of a step ends it."""
        variables = self.variables()
        return self.client.parameters.push(variables, ends_step) if variables else None

    @property
    def _staged(self) -> set[int]:
        """The parameters whose gradients this thread holds for the end of the step."""
        if not hasattr(self._thread, "staged"):
            self._thread.staged = set()
        return self._thread.staged

    def _earlier_reductions(self) -> list[tf.Tensor]:
        """The sums of this step in the function that is being traced; none eagerly."""
        if tf.executing_eagerly():
            return []
        graph = tf.compat.v1.get_default_graph()
        return [r for r in self._reductions if r.graph is graph]

    @property
    def _reductions(self) -> list[tf.Tensor]:
        """The sums that this thread has traced since its step began."""
        if not hasattr(self._thread, "reductions"):
            self._thread.reductions = []
        return self._thread.reductions

    def variables(self) -> list[ServerVariable]:
        """Returns the live variables; in a TensorFlow 1 graph, the variables of the graph."""
        alive = [(parameter, reference()) for parameter, reference in list(self._variables.items())]
        for parameter, variable in alive:
            if variable is None:
                del self._variables[parameter]
        graph = outermost_graph()
        return [v for _, v in alive if v is not None and graph_of(v) is graph]

    def bind(
        self,
        config: OptimizerConfig,
        bindings: Sequence[tuple[ServerVariable, Sequence[ServerVariable], float]],
    ) -> None:
        """Makes the servers update variables by gradients.

        Args:
          config: the optimizer.
          bindings: each variable with its slots and its weight decay.
        """
        self.client.parameters.bind(
            config,
            [(v.parameter, [s.parameter for s in slots], decay) for v, slots, decay in bindings],
        )

    def stage(
        self,
        variables: Sequence[ServerVariable],
        gradients: Sequence[tf.Tensor | tf.IndexedSlices],
        learning_rate: tf.Tensor,
        step: tf.Tensor,
    ) -> tf.Operation | None:
        """Holds gradients of bound variables for the push that ends the step.

        Args:
          variables: the variables.
          gradients: for each variable its gradient.
          learning_rate: of this step, a scalar.
          step: the optimizer's step, counted from 1.

        Returns:
          The operation, in a graph.
        """
        counters.note_update()
        staged = self.client.parameters.stage(variables, gradients, learning_rate, step)
        self.has_staged(variables)
        return staged

    def has_staged(self, variables: Sequence[ServerVariable]) -> None:
        """Records that gradients of variables are held for the push that ends the step."""
        self._staged.update(v.parameter for v in variables)

    def lookup(
        self, tables: Sequence[TableHandle], ids: Sequence[tf.Tensor], training: bool
    ) -> list[tf.Tensor]:
        """Looks up rows as `client.lookup`, batched with other lookups of a traced step."""
        return self._groups.lookup(tables, ids, training)

    def stage_rows(
        self, tables: Sequence[TableHandle], *gradients: Sequence[tf.Tensor]
    ) -> tf.Operation | None:
        """Holds gradients of rows for the push that ends the step; as `client.stage_rows`."""
        counters.note_update()
        self._groups.cut()
        return self.client.tables.stage(tables, *gradients)

    def all_reduce(self, values: Nested, divisor: int | None) -> Nested:
        """Sums tensors, or nested tensors, over all workers; divides the sums by a divisor."""
        with self._after_pull():
            tensors = [tf.identity(tf.convert_to_tensor(v)) for v in tf.nest.flatten(values)]
        sums = self.client.averaging.reduce(tensors)
        if self.in_step and not tf.executing_eagerly():
            self._reductions.extend(sums)
        if divisor is not None:
            sums = [s / tf.cast(divisor, s.dtype) for s in sums]
        return tf.nest.pack_sequence_as(values, sums)

    def _after_pull(self) -> contextlib.AbstractContextManager:
        """Lets a reduction follow the pull of its step, whose clock tells its step to the servers.

        A value that does not depend on variables could be reduced before.
        """
        pull = getattr(self._thread, "pull", None) if self.in_step else None
        if pull is None or pull.graph is not tf.compat.v1.get_default_graph():
            return contextlib.nullcontext()
        return tf.control_dependencies([pull])

    def write(self, variables: Sequence[ServerVariable]) -> tf.Operation | None:
        """Writes variables that were changed outside of a step to the servers."""
        return self.client.parameters.set(variables, write=self.is_chief)


if TYPE_CHECKING:
    _of_keras: type[Servers] = Parameters
