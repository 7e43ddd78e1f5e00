"""A table of rows by id."""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, overload

import numpy as np
import tensorflow as tf

from tfdist import ops
from tfdist.embedding import initializers, optimizers, row_access, saved_tables
from tfdist.ps.export import files
from tfdist.ps.variable_scopes import Role, made_as
from tfdist.strategies._variables.graphs import in_graph_of_tensorflow_1
from tfdist.strategies._variables.table_variable import TableVariable

# What a table is told that is made in a TensorFlow 1 graph which only reads tables.
reader: contextvars.ContextVar[Callable[[EmbeddingTable], None] | None]
reader = contextvars.ContextVar("reader", default=None)

# The name of the variable that stands for a table.
ROWS = "remote_rows"
_WIRE = ("float32", "float16", "bfloat16")
_POLICIES = {"lru": ops.EvictionPolicy.LRU, "lfu": ops.EvictionPolicy.LFU}


class EmbeddingTable:
    """Rows of float32 by 64-bit id, which live on the parameter servers alone.

    A row is made when its id is looked up in training for the first time. Make the table in the
    scope of a `ParameterServerStrategy`, or of a `MultiWorkerMirroredStrategy` whose cluster has
    `ps` tasks; all workers make the same tables. Its gradient belongs to `rows`.

    Args:
      name: the same in all workers, and another than other tables have.
      output_dim: the rows' width.
      input_dim: ids must be from 0 to this, exclusive; `None`: any.
      optimizer: how gradients change rows: a name ("sgd", "adagrad", "rowwise_adagrad", "rmsprop",
        "adam", "exact_adam", "adamw", "adamax", "nadam", "adadelta", "adafactor", "lamb", "lion",
        "ftrl", "group_ftrl"), an optimizer of `tfdist.embedding`, or one of Keras.
      initializer: what rows begin as: a name such as "uniform" or "zeros", or a Keras initializer.
      learning_rate: a number or a Keras `LearningRateSchedule`; `None`: the `optimizer`'s, and if
        it has none, that of the model's optimizer in each step.
      min_count: an id gets a row when it is looked up this often in training (up to 65535, counted
        by a sketch that may count too many, never too few).
      probability: an id without a row gets one with this probability each time.
      max_rows: the most rows that each server keeps; `None`: no limit. Nothing is evicted below it;
        above, each new row evicts one: of a random sample the least recently (`eviction="lru"`) or
        least frequently ("lfu") used. Evictions do not wait for each other, so that up to 15 rows
        more may stand for a while. With n servers a table has n times as many.
      eviction: "lru" or "lfu".
      ttl_seconds: a row that was not looked up in training for longer goes; `None`: never.
      min_norm: a row of a smaller Euclidean norm goes; `None`: none.
      wire_dtype: as what rows and gradients travel: "float32", "float16" or "bfloat16". Rows are
        kept, and gradients added up, as float32.
      cache_rows: so many rows that are looked up often in training stay with the worker; 0: none.
      cache_steps: for so many of the worker's steps a row that stayed is used again, without what
        others, or the worker itself, have changed (bounded staleness, Ho et al. 2013). Such
        lookups do not count for `min_count` and `eviction`.
      save_rows: whether what Keras and TensorFlow save of a model has the table's rows, of which
        there may be 1 GB then; else they are only in the servers' snapshots and in exports.
      reset_slots: the servers may go on from a checkpoint whose table of this name has other
        arguments, such as another optimizer, and the same `output_dim`: its rows keep their values,
        and what the optimizer keeps of them is reset. Without, such a checkpoint is refused.

    Raises:
      ValueError: an argument makes no sense; says what was expected.
    """

    def __init__(
        self,
        name: str,
        output_dim: int,
        *,
        input_dim: int | None = None,
        optimizer: Any = "adagrad",
        initializer: Any = "uniform",
        learning_rate: Any = None,
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
        for what, value in (("ttl_seconds", ttl_seconds), ("min_norm", min_norm)):
            fits = value is None or (_is_number(value) and value > 0)
            self._expect(fits, what, "a positive number, or None", value)
        self._expect(wire_dtype in _WIRE, "wire_dtype", f"one of {', '.join(_WIRE)}", wire_dtype)
        fits = cache_rows == 0 or _is_count(cache_rows)
        self._expect(fits, "cache_rows", "a whole number from 0 on", cache_rows)
        fits = _is_count(cache_steps)
        self._expect(fits, "cache_steps", "a whole number from 1 on", cache_steps)
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
        self.config()  # says now what is wrong with the initializer
        self.strategy = tf.distribute.get_strategy()
        self._weight: Any = None
        self._has_plain_weight = False
        self.static: Any = None
        if reader.get() is not None and in_graph_of_tensorflow_1():
            reader.get()(self)

    def config(self) -> ops.TableConfig:
        """What the servers must know of the table."""
        given = self._arguments
        slots = self.optimizer.first_slots
        return ops.TableConfig(
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
        """Returns the arguments, of which `from_config` makes an equal table."""
        return dict(self._arguments)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> EmbeddingTable:
        """Makes a table of what `get_config` returns, also after Keras has saved it."""
        return cls(**config)

    def weight(self, make: Any = None) -> Any:
        """The variable that stands for the table, made at first.

        Args:
          make: makes it, given its shape and a name for it; by default a `tf.Variable`, which
            a later call with a `make` replaces: a layer needs a variable of its library.
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
        """Whether there is a variable that stands for the table."""
        return self._weight is not None

    @property
    def scope_name(self) -> str:
        """The table's name as a graph allows it: with fewer characters."""
        return re.sub(r"[^A-Za-z0-9_./-]", "_", self.name)

    @property
    def rows(self) -> TableVariable:
        """The variable that receives the table's gradient, float32[0, output_dim].

        Raises:
          ValueError: it was made where no parameter servers are.
        """
        weight = self.weight()
        return self.attached(weight if isinstance(weight, tf.Variable) else weight.value)

    def attached(self, variable: tf.Variable) -> TableVariable:
        """Returns `variable`, which from now on stands for this table.

        Raises:
          ValueError: it was made where no parameter servers are.
        """
        if not isinstance(variable, TableVariable):
            raise ValueError(
                f"embedding table {self.name!r}: expected to be made in the scope of a "
                "tfdist.ParameterServerStrategy, or of a tfdist.MultiWorkerMirroredStrategy whose "
                f"cluster has ps tasks, received {self.strategy!r}"
            )
        variable.attach(self)
        return variable

    def export_table(self, path: str, slots: bool = False) -> int:
        """Writes all rows to a file that NumPy or Parquet reads, and returns how many there are.

        Args:
          path: ends in ".npz" or ".parquet"; for the latter pyarrow is needed.
          slots: write also what the optimizer keeps, and when and how often rows were used.

        Raises:
          Exception: as `tfdist.ps.export.files.export_table`.
        """
        return files.export_table(*self.on_servers(), path, slots)

    def import_table(self, path: str, slots: bool = True) -> int:
        """Puts the rows of a file into the table, and returns how many there are.

        Args:
          path: of a file that `export_table` has written, or anybody else: of int64 `ids` and
            float32 `values`.
          slots: take what the file has of the optimizer's slots; else the values alone, and slots
            begin as those of new rows: for a file of a table with another optimizer.

        Raises:
          Exception: as `tfdist.ps.export.files.import_table`.
        """
        return files.import_table(*self.on_servers(), path, slots=slots, name=self.name)

    def upsert(self, ids: Any, rows: Any) -> tf.Operation | None:
        """Writes the values of rows; those that do not exist are made, whatever `min_count` says.

        Here and below: what changes rows has been acknowledged by the servers when the call (in a
        graph, the operation) has ended, and a killed server that is started again knows of it. It
        takes place at once, also within a step, whose gradients come at its end. It is carried out
        once, also where a connection broke. What this worker has cached of the table, or looked up
        a batch ahead, is forgotten; other workers' caches are not.

        Args:
          ids: integers or strings of any shape, dense. Of an id that occurs twice the last row
            counts.
          rows: float32 of the shape of `ids` and `output_dim`. Rows that exist keep what the
            optimizer has of them; in new ones that begins as in any new row.

        Returns:
          In a TensorFlow 1 graph the operation.

        Raises:
          ValueError: there is not a row of `output_dim` numbers for each id.
          TypeError: ids are neither integers nor strings.
          tf.errors.InvalidArgumentError: an id is not below `input_dim`.
          tf.errors.OpError: a server refused, for example for want of memory, or does not answer.

        Example:

        ```python
        users.upsert(["ann", "bob"], np.zeros([2, 16]))
        ```
        """
        return row_access.upsert(self, ids, rows)

    def remove(self, ids: Any) -> tf.Operation | None:
        """Removes rows and what the optimizer has of them; ids without a row are passed over.

        A gradient that is under way to a removed row creates the row again.

        Args:
          ids: as of `upsert`.

        Returns:
          As `upsert`.

        Raises:
          Exception: as `upsert`.
        """
        return row_access.remove(self, ids)

    def clear(self) -> tf.Operation | None:
        """Removes all rows, and forgets which ids were seen (`min_count`).

        Returns:
          As `upsert`.

        Raises:
          tf.errors.OpError: a server refused or does not answer.
        """
        return row_access.clear(self)

    def size(self) -> tf.Tensor:
        """Returns how many rows there are on all servers together: an int64 scalar.

        Raises:
          tf.errors.OpError: a server does not answer.
        """
        return row_access.size(self)

    def contains(self, ids: Any) -> tf.Tensor:
        """Returns which ids have a row: bool of the shape of `ids`, which are as of `upsert`.

        Raises:
          Exception: as `upsert`.
        """
        return row_access.contains(self, ids)

    @overload
    def fetch(self) -> tuple[np.ndarray, np.ndarray]: ...

    @overload
    def fetch(self, ids: Any, default: Any = None) -> tf.Tensor: ...

    def fetch(self, ids: Any = None, default: Any = None) -> Any:
        """Returns rows as the servers have them, without making any or counting as a use.

        Args:
          ids: as of `upsert`; `None`: all ids that have a row.
          default: what an id without a row gives: a number or a row, float32[output_dim]; `None`:
            what its row would begin as, by the table's initializer.

        Returns:
          float32 of the shape of `ids` and `output_dim`; without ids all of them, int64[n], and
          their rows, float32[n, output_dim], as NumPy arrays.

        Raises:
          Exception: as `upsert`.
        """
        if ids is None:
            return files.fetch(*self.on_servers())
        return row_access.fetch(self, ids, default)

    @contextlib.contextmanager
    def replaced_by(self, static: Any) -> Iterator[None]:
        """Within, lookups in the table are lookups in a `StaticTable`."""
        self.static = static
        try:
            yield
        finally:
            self.static = None

    def columns(self) -> dict[str, np.ndarray]:
        """The rows for what Keras and TensorFlow save; see `saved_tables.columns_of`."""
        return saved_tables.columns_of(self)

    def restore(self, columns: Mapping[str, np.ndarray], source: str) -> None:
        """Puts saved rows in place; see `saved_tables.restore`."""
        saved_tables.restore(self, columns, source)

    def on_servers(self) -> tuple[ops.ParameterClient, int, ops.TableConfig]:
        """What `tfdist.ps.export.files` wants: the connections, the table's number, its config."""
        rows = self.rows
        return rows.parameters.client, rows.table, self.config()

    def _expect(self, fits: bool, what: str, expected: str, received: Any) -> None:
        if not fits:
            raise ValueError(
                f"embedding table {self.name!r}: expected {what} to be {expected}, received "
                f"{received!r}"
            )


def _make_variable(shape: tuple[int, int], name: str) -> tf.Variable:
    with tf.init_scope():
        return tf.Variable(tf.zeros(shape), name=name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
