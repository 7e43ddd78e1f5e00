"""Embedding tables: rows by id on the parameter servers, or dealt over the workers."""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import tensorflow as tf

from tfdist._types import KerasVariable, TensorLike
from tfdist.embedding import initializers, optimizers, row_access, saved_tables
from tfdist.embedding.initializers import AnyInitializer
from tfdist.embedding.optimizers import AnyRowOptimizer, LearningRate
from tfdist.ops.ps.client import ParameterClient
from tfdist.ops.ps.table_config import EvictionPolicy, TableConfig
from tfdist.ps.export import files
from tfdist.ps.variable_scopes import Role, made_as
from tfdist.strategies._variables.graphs import in_graph_of_tensorflow_1
from tfdist.strategies._variables.table_variable import TableVariable

if TYPE_CHECKING:
    import keras

    from tfdist.embedding.static_table import StaticTable

# Called with each new table in a TensorFlow 1 graph that only reads tables.
reader: contextvars.ContextVar[Callable[[EmbeddingTable], None] | None]
reader = contextvars.ContextVar("reader", default=None)

# The name of the variable that stands for a table.
ROWS = "remote_rows"
_WIRE_DTYPES = ("float32", "float16", "bfloat16")
_PLACEMENTS = ("servers", "workers")
_POLICIES = {"lru": EvictionPolicy.LRU, "lfu": EvictionPolicy.LFU}


class EmbeddingTable:
    """Rows of float32 by 64-bit id, each of which is stored by one process of the job.

    The rows are on the job's `ps` tasks. In a job without any, each worker stores its share of the
    rows, and serves the others. The first lookup of an id in training creates its row. Make the
    table in the scope of a `ParameterServerStrategy`, or of a `MultiWorkerMirroredStrategy`; all
    workers make the same tables. Its gradient belongs to `rows`.

    Args:
      name: a unique name, the same in all workers.
      output_dim: the rows' width.
      input_dim: ids must be in [0, input_dim); `None`: any ids.
      optimizer: the optimizer of rows: a name ("sgd", "adagrad", "rowwise_adagrad", "rmsprop",
        "adam", "exact_adam", "adamw", "adamax", "nadam", "adadelta", "adafactor", "lamb", "lion",
        "ftrl", "group_ftrl"), an optimizer of `tfdist.embedding`, or one of Keras.
      initializer: the initial values of rows: a name such as "uniform" or "zeros", or a Keras
        initializer.
      learning_rate: a number or a Keras `LearningRateSchedule`; `None`: the `optimizer`'s, and if
        it has none, the rate of the model's optimizer in each step.
      min_count: the number of lookups in training after which an id gets a row (up to 65535; a
        sketch counts them, which may count too many, never too few).
      probability: the probability with which a lookup in training creates a missing row.
      max_rows: the maximum number of rows on each server; `None`: no limit. At the limit each new
        row evicts the least recently (`eviction="lru"`) or least frequently ("lfu") used row of a
        random sample. Evictions are concurrent, so the limit may be exceeded by up to 15 rows for
        a while. With n servers a table has up to n times as many rows.
      eviction: "lru" or "lfu".
      ttl_seconds: rows without a lookup in training for longer than this are evicted; `None`: none.
      min_norm: rows with a smaller Euclidean norm are evicted; `None`: none.
      wire_dtype: the dtype in which rows and gradients are sent: "float32", "float16" or
        "bfloat16". Rows are stored, and gradients summed, as float32.
      cache_rows: the number of frequently used rows that the worker caches in training; 0: none.
      cache_steps: the number of the worker's steps for which a cached row is reused, without the
        changes of any worker since then (bounded staleness, Ho et al. 2013). Lookups of cached
        rows do not count for `min_count` and `eviction`.
      save_rows: whether models that Keras and TensorFlow save include the table's rows, at most
        1 GB; otherwise only the servers' snapshots and exports do.
      reset_slots: whether the servers may restore a checkpoint whose table of this name has other
        arguments, such as another optimizer, and the same `output_dim`: the rows keep their values,
        and the optimizer's slots are reset. Otherwise such a checkpoint is refused.
      placement: "servers": the job must have `ps` tasks, which hold the rows. "workers": it must
        have none, so that the workers hold the rows. `None`: either. It belongs to the job, not to
        the table: files and configurations do not include it.

    Raises:
      ValueError: an argument is invalid; names the expected value.
    """

    # Of the layers for Keras 3 that share the table, made on first use.
    shared_rows: keras.Variable

    def __init__(
        self,
        name: str,
        output_dim: int,
        *,
        input_dim: int | None = None,
        optimizer: AnyRowOptimizer = "adagrad",
        initializer: AnyInitializer = "uniform",
        learning_rate: LearningRate = None,
        min_count: int = 1,
        probability: float = 1.0,
        max_rows: int | None = None,
        eviction: str = "lru",
        ttl_seconds: float | None = None,
        min_norm: float | None = None,
        wire_dtype: str = "float32",
        cache_rows: int = 0,
        cache_steps: int = 8,
        save_rows: bool = True,
        reset_slots: bool = False,
        placement: str | None = None,
    ) -> None:
        self.name = name
        self._expect(_is_count(output_dim), "output_dim", "a whole number from 1 on", output_dim)
        for what, value in (("input_dim", input_dim), ("max_rows", max_rows)):
            fits = value is None or _is_count(value)
            self._expect(fits, what, "a whole number from 1 on, or None", value)
        self._expect(eviction in _POLICIES, "eviction", "'lru' or 'lfu'", eviction)
        fits = _is_count(min_count) and min_count < 2**16
        self._expect(fits, "min_count", "a whole number from 1 to 65535", min_count)
        fits = _is_number(probability) and 0 < probability <= 1
        self._expect(fits, "probability", "a number above 0 and up to 1", probability)
        for what, limit in (("ttl_seconds", ttl_seconds), ("min_norm", min_norm)):
            fits = limit is None or (_is_number(limit) and limit > 0)
            self._expect(fits, what, "a positive number, or None", limit)
        self._expect(
            wire_dtype in _WIRE_DTYPES,
            "wire_dtype",
            f"one of {', '.join(_WIRE_DTYPES)}",
            wire_dtype,
        )
        fits = cache_rows == 0 or _is_count(cache_rows)
        self._expect(fits, "cache_rows", "a whole number from 0 on", cache_rows)
        fits = _is_count(cache_steps)
        self._expect(fits, "cache_steps", "a whole number from 1 on", cache_steps)
        fits = placement is None or placement in _PLACEMENTS
        self._expect(fits, "placement", "'servers', 'workers' or None", placement)
        self.placement = placement
        self.output_dim, self.input_dim = output_dim, input_dim
        self.optimizer = optimizers.get(optimizer)
        self.learning_rate = optimizers.as_learning_rate(learning_rate)
        if learning_rate is None:
            self.learning_rate = self.optimizer.learning_rate
        self.wire_dtype = tf.as_dtype(wire_dtype)
        self.cache_rows, self.cache_steps = cache_rows, cache_steps
        self.save_rows = save_rows
        self.reset_slots = bool(reset_slots)
        self._arguments = {
            "name": name,
            "output_dim": output_dim,
            "input_dim": input_dim,
            "optimizer": self.optimizer.get_config(),
            "initializer": initializer,
            "learning_rate": learning_rate,
            "min_count": min_count,
            "probability": probability,
            "max_rows": max_rows,
            "eviction": eviction,
            "ttl_seconds": ttl_seconds,
            "min_norm": min_norm,
            "wire_dtype": self.wire_dtype.name,
            "cache_rows": cache_rows,
            "cache_steps": cache_steps,
            "save_rows": save_rows,
            "reset_slots": self.reset_slots,
        }
        self.config()  # checks the initializer early
        self.strategy = tf.distribute.get_strategy()
        tables = getattr(self.strategy.extended, "tables", None)
        if tables is not None and placement != "servers":
            tables.prepare()
        self._weight: TableVariable | None = None
        self._has_plain_weight = False
        self.static: Any = None
        read = reader.get()
        if read is not None and in_graph_of_tensorflow_1():
            read(self)

    def config(self) -> TableConfig:
        """Returns the table's configuration in the servers' form."""
        given = self._arguments
        slots = self.optimizer.first_slots
        return TableConfig(
            width=self.output_dim,
            rule=self.optimizer.rule,
            optimizer=self.optimizer.config(),
            weight_decay=getattr(self.optimizer, "weight_decay", None) or 0.0,
            group_penalty=getattr(self.optimizer, "l21_regularization_strength", 0.0),
            first_slots=(*slots, *[0.0] * (3 - len(slots))),
            initializer=initializers.get(
                given["initializer"], self.name, self.input_dim, self.output_dim
            ),
            min_count=given["min_count"],
            probability=given["probability"],
            max_rows=given["max_rows"] or 0,
            policy=_POLICIES[given["eviction"]],
            ttl_seconds=given["ttl_seconds"] or 0.0,
            min_norm=given["min_norm"] or 0.0,
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, from which `from_config` makes an equal table."""
        return dict(self._arguments)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> EmbeddingTable:
        """Makes a table from the result of `get_config`, also after Keras has saved it."""
        return cls(**config)

    def weight(
        self, make: Callable[[tuple[int, int], str], KerasVariable] | None = None
    ) -> KerasVariable:
        """Returns the variable that represents the table, and makes it on first use.

        Args:
          make: a function of a shape and a name that makes the variable; by default a
            `tf.Variable`, which a later call with a `make` replaces, since a layer needs a variable
            of its library.
        """
        if self._weight is None or (make is not None and self._has_plain_weight):
            self._has_plain_weight = make is None
            make = make or _make_variable
            is_here = tf.distribute.get_strategy() is self.strategy
            scope = contextlib.nullcontext() if is_here else self.strategy.scope()
            with scope, tf.name_scope(self.scope_name), made_as(Role.TABLE):
                self._weight = make((0, self.output_dim), ROWS)
        return self._weight

    @property
    def is_used(self) -> bool:
        """Whether there is a variable that represents the table."""
        return self._weight is not None

    @property
    def scope_name(self) -> str:
        """The table's name, with "_" for characters that a graph does not allow."""
        return re.sub(r"[^A-Za-z0-9_./-]", "_", self.name)

    @property
    def rows(self) -> TableVariable:
        """The variable that receives the table's gradient, float32[0, output_dim].

        Raises:
          ValueError: as for `attached`.
        """
        weight = self.weight()
        return self.attached(weight if isinstance(weight, tf.Variable) else weight.value)

    def attached(self, variable: tf.Variable) -> TableVariable:
        """Returns `variable`, which represents this table from now on.

        Raises:
          ValueError: the table was not made in the scope of a strategy that holds tables, or the
            job holds them elsewhere than at its `placement`.
        """
        if not isinstance(variable, TableVariable):
            if getattr(self.strategy, "elastic_job", None) is not None:
                raise ValueError(
                    f"embedding table {self.name!r}: expected a cluster with ps tasks in an "
                    "elastic job, since rows on a worker would be lost with it, received a "
                    f"cluster without any, and placement={self.placement!r}"
                )
            raise ValueError(
                f"embedding table {self.name!r}: expected to be made in the scope of a "
                "tfdist.ParameterServerStrategy or a tfdist.MultiWorkerMirroredStrategy, received "
                f"{self.strategy!r}"
            )
        variable.attach(self)
        return variable

    def export_table(self, path: str, slots: bool = False) -> int:
        """Writes all rows to a NumPy archive or a Parquet file; returns the number of rows.

        Args:
          path: ends in ".npz" or ".parquet"; the latter needs pyarrow.
          slots: also write the optimizer's slots, and time and number of uses of each row.

        Raises:
          Exception: as for `tfdist.ps.export.files.export_table`.
        """
        return files.export_table(*self.on_servers(), path, slots)

    def import_table(self, path: str, slots: bool = True) -> int:
        """Inserts or replaces rows from a file; returns the number of rows.

        Args:
          path: a file of `export_table`, or one of another program, with int64 `ids` and float32
            `values`.
          slots: restore the file's slots. Without, which a file from another optimizer needs, only
            values are restored, and slots begin as in new rows.

        Raises:
          Exception: as for `tfdist.ps.export.files.import_table`.
        """
        return files.import_table(*self.on_servers(), path, slots=slots, name=self.name)

    def upsert(self, ids: TensorLike, rows: TensorLike) -> tf.Operation | None:
        """Writes the values of rows, and creates missing ones regardless of `min_count`.

        The following holds for all methods that change rows. When the call (in a graph, the
        operation) returns, the servers have acknowledged the change, and a killed server restores
        it after its restart. The change takes place at once, also within a step, whose gradients
        come at its end. It happens exactly once, also if a connection breaks. It invalidates the
        rows of the table that this worker has cached or prefetched, but not other workers' caches.

        Args:
          ids: integers or strings of any shape, dense. If an id occurs twice, the last row counts.
          rows: float32 of the shape of `ids` and `output_dim`. Existing rows keep the optimizer's
            slots; new rows get initial ones.

        Returns:
          In a TensorFlow 1 graph the operation.

        Raises:
          ValueError: `rows` does not have the shape of `ids` and `output_dim`.
          TypeError: ids are neither integers nor strings.
          tf.errors.InvalidArgumentError: an id is not below `input_dim`.
          tf.errors.OpError: a server refused, for example because its memory is full, or does not
            answer.

        Example:

        ```python
        users.upsert(["ann", "bob"], np.zeros([2, 16]))
        ```
        """
        return row_access.upsert(self, ids, rows)

    def remove(self, ids: TensorLike) -> tf.Operation | None:
        """Removes rows and their slots; ignores ids without a row.

        A gradient that is on its way to a removed row creates the row again.

        Args:
          ids: as for `upsert`.

        Returns:

        Raises also the errors of `upsert`.

        Raises:
          Exception: as for `upsert`.
        """
        return row_access.remove(self, ids)

    def clear(self) -> tf.Operation | None:
        """Removes all rows, and resets the counts of seen ids (`min_count`).

        Returns:

        Raises also the errors of `upsert`.

        Raises:
          tf.errors.OpError: a server refused or does not answer.
        """
        return row_access.clear(self)

    def size(self) -> tf.Tensor:
        """Returns the number of rows on all servers together, an int64 scalar.

        Raises:
          tf.errors.OpError: a server does not answer.
        """
        return row_access.size(self)

    def contains(self, ids: TensorLike) -> tf.Tensor:
        """Returns whether each id has a row: bool of the shape of `ids`, which are as for `upsert`.

        Raises:
          Exception: as for `upsert`.
        """
        return row_access.contains(self, ids)

    @overload
    def fetch(self) -> tuple[np.ndarray, np.ndarray]: ...

    @overload
    def fetch(self, ids: TensorLike, default: TensorLike | None = None) -> tf.Tensor: ...

    def fetch(
        self, ids: TensorLike | None = None, default: TensorLike | None = None
    ) -> tf.Tensor | tuple[np.ndarray, np.ndarray]:
        """Returns the servers' rows; it creates no rows and does not count as a use.

        Args:
          ids: as for `upsert`; `None`: all ids that have a row.
          default: the result for an id without a row: a number or a row, float32[output_dim];
            `None`: the row's initial values.

        Returns:
          float32 of the shape of `ids` and `output_dim`. With `ids=None`: all ids, int64[n], and
          their rows, float32[n, output_dim], as NumPy arrays.

        Raises:
          Exception: as for `upsert`.
        """
        if ids is None:
            return files.fetch(*self.on_servers())
        return row_access.fetch(self, ids, default)

    @contextlib.contextmanager
    def replaced_by(self, static: StaticTable) -> Iterator[None]:
        """Redirects lookups in the table to a `StaticTable` while the context is active."""
        self.static = static
        try:
            yield
        finally:
            self.static = None

    def columns(self) -> dict[str, np.ndarray]:
        """Returns the rows for a saved model; see `saved_tables.columns_of`."""
        return saved_tables.columns_of(self)

    def restore(self, columns: Mapping[str, np.ndarray], source: str) -> None:
        """Restores saved rows; see `saved_tables.restore`."""
        saved_tables.restore(self, columns, source)

    def on_servers(self) -> tuple[ParameterClient, int, TableConfig]:
        """Returns the connections, the table's id and its configuration."""
        rows = self.rows
        rows.parameters.settle()
        return rows.parameters.client, rows.table, self.config()

    def _expect(self, fits: bool, what: str, expected: str, received: object) -> None:
        if not fits:
            raise ValueError(
                f"embedding table {self.name!r}: expected {what} to be {expected}, received "
                f"{received!r}"
            )


def _make_variable(shape: tuple[int, int], name: str) -> tf.Variable:
    with tf.init_scope():
        return tf.Variable(tf.zeros(shape), name=name)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
