"""Loading of a SavedModel whose tables are on servers."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.config.settings import Settings
from tfdist.config.validation import addresses_in
from tfdist.errors import ClusterConfigError
from tfdist.ops import library
from tfdist.ops.ps.table_config import TableConfig
from tfdist.ps.export import served_models
from tfdist.ps.export.served_models import ServedModelFile
from tfdist.serving.tables.connection import TableConnection
from tfdist.serving.tables.local_tables import LocalTables


def load(
    folder: str,
    servers: str | Sequence[str] | None = None,
    *,
    tables: str | None = None,
    cache_rows: int = 0,
    cache_seconds: float = 1.0,
    timeout: float = 10.0,
    wait: float | None = None,
) -> Any:
    """Loads a SavedModel and binds its lookups to servers of its tables, or to a folder of rows.

    The environment gives the secret and TLS (`TFDIST_SECRET_FILE`, `TFDIST_TLS`), as it does for
    the servers.

    Args:
      folder: a SavedModel of `tfdist.export_for_serving(model, folder, tables="served")`.
      servers: "host:port" of all servers of `tfdist ps serve`, in their order; a list, or one text
        with commas.
      tables: instead of servers, the folder of a snapshot, whose rows this process then holds.
      cache_rows: the number of rows of each table that this process caches; 0: none.
      cache_seconds: a cached row is used for at most so long after it was requested; from 1/16 s.
      timeout: seconds after which a lookup fails that no copy of its rows answers.
      wait: seconds for which this call waits for servers that do not answer yet, such as servers
        that still read their snapshot; `None`: as `timeout`.

    Returns:
      The object of `tf.saved_model.load`: `serve`, `signatures` and so on. Its `table_connection`
      may be closed; else it is with the object.

    Raises:
      ValueError: the folder has no such SavedModel, or an argument is invalid.
      ClusterConfigError: the servers do not have a table of the model, or with rows of another
        width; or they refuse this process, or contradict each other.
      AuthenticationError: this process does not have the servers' secret.
      CheckpointError: the folder of `tables` has no usable snapshot.
      tf.errors.UnavailableError: of some rows no server answers.

    Example:

    ```python
    model = tfdist.serving.load("model", servers="host1:7000,host2:7000")
    answers = model.serve(ids)
    ```
    """
    _check(servers, tables, cache_rows, cache_seconds, timeout, wait)
    file = ServedModelFile.read(folder)
    connection = _connection(servers, tables, timeout, wait)
    try:
        for name, width in file.tables.items():
            table = _add(connection, name, width)
            connection.client.tables.set_served_cache(table, cache_rows, cache_seconds)
        library.graph_ops()  # before the graph that has them
        loaded = tf.saved_model.load(folder)
        (client,) = getattr(loaded, served_models.CLIENT)
        client.assign(connection.client.handle)
        variables = _variables_by_name(loaded, file, folder)
    except BaseException:
        connection.close()
        raise
    loaded.table_connection = connection
    loaded.table_variables = variables
    weakref.finalize(loaded, connection.close)
    return loaded


def _variables_by_name(loaded: Any, file: ServedModelFile, folder: str) -> dict[str, tf.Variable]:
    """Returns the model's variables that a training's servers have, by their names there."""
    variables = list(getattr(loaded, "variables", []))
    if len(variables) != len(file.variables):
        raise ValueError(
            f"the SavedModel in {folder!r}: expected {len(file.variables)} variables, as its "
            f"description says, received {len(variables)}"
        )
    named = zip(file.variables, variables, strict=True)
    return {name: variable for name, variable in named if name is not None}


def _check(
    servers: str | Sequence[str] | None,
    tables: str | None,
    cache_rows: int,
    cache_seconds: float,
    timeout: float,
    wait: float | None,
) -> None:
    def expect(fits: bool, expected: str, received: object) -> None:
        if not fits:
            raise ValueError(f"serving.load: expected {expected}, received {received!r}")

    expect((servers is None) != (tables is None), "either servers or tables", (servers, tables))
    fits = isinstance(cache_rows, int) and cache_rows >= 0
    expect(fits, "cache_rows of 0 or more", cache_rows)
    expect(cache_seconds >= 1 / 16, "cache_seconds of at least 1/16", cache_seconds)
    expect(timeout > 0, "a timeout of more than 0 s", timeout)
    expect(wait is None or wait >= 0, "a wait of 0 s or more", wait)


def _connection(
    servers: str | Sequence[str] | None, tables: str | None, timeout: float, wait: float | None
) -> TableConnection | LocalTables:
    if tables is not None:
        return LocalTables(tables)
    assert servers is not None
    if isinstance(servers, str):
        servers = addresses_in(servers, "serving.load: servers", "servers of tables")
    return TableConnection(servers, Settings.from_environment(), timeout, wait=wait)


def _add(connection: TableConnection | LocalTables, name: str, width: int) -> int:
    """Makes a table of the model known to lookups; returns its id."""
    known = connection.widths
    if known.get(name) != width:
        received = f"rows of {known[name]} numbers" if name in known else "no such table"
        listed = ", ".join(f"{table!r} ({known[table]})" for table in sorted(known))
        raise ClusterConfigError(
            f"table {name!r}: expected rows of {width} numbers, as the model looks them up, "
            f"received {received} from {connection.origin}, which has {listed or 'no table'}"
        )
    return connection.client.tables.create(name, TableConfig(width=width))
