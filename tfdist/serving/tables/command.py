"""The work of the command `tfdist ps serve`."""

from __future__ import annotations

import contextlib
import logging
import sys

import tensorflow as tf

from tfdist import _providers
from tfdist.config.cluster import Cluster
from tfdist.config.printing import printable
from tfdist.config.settings import Settings
from tfdist.config.validation import addresses_in
from tfdist.errors import ClusterConfigError, TfdistError
from tfdist.serving.tables import local_servers
from tfdist.serving.tables.server import TableServer
from tfdist.serving.tables.server_group import ServerGroup


def serve(
    folder: str, servers: str | None, index: int | None, replicas: int, follow: float | None
) -> int:
    """Serves the tables of a folder until a signal ends it.

    Args:
      folder: the folder of the snapshot.
      servers: the addresses of all servers, "host:port,..."; `None`: the `ps` tasks of `TF_CONFIG`,
        and without that as many servers of this machine as `replicas`.
      index: this server's among them; `None`: the task's of `TF_CONFIG`.
      replicas: the number of servers that hold each row.
      follow: seconds between two looks for a later snapshot; `None`: none.

    Returns:
      The exit code.
    """
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    try:
        if servers is None and index is None and Cluster.from_environment().is_local:
            looks = [] if follow is None else ["--follow", "--look-every", str(follow)]
            return local_servers.run([folder, "--replicas", str(replicas), *looks], replicas)
        group = group_of(servers, index)
        settings = Settings.from_environment()
        server = TableServer(folder, group, replicas, settings, follow)
    except ClusterConfigError as error:
        return _failed(error, 2)
    except (TfdistError, OSError, tf.errors.OpError) as error:
        return _failed(error, 1)
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(server.close)
            if settings.metrics_port is not None:
                serve_metrics = _providers.provider("serve_metrics")
                exporter = serve_metrics(group, settings, server)
                if exporter is not None:
                    stack.enter_context(contextlib.closing(exporter))
            return server.serve()
    except ClusterConfigError as error:
        return _failed(error, 2)
    except (TfdistError, OSError, tf.errors.OpError) as error:
        return _failed(error, 1)


def group_of(servers: str | None, index: int | None) -> ServerGroup:
    """Returns the group of servers of a command line, or of `TF_CONFIG`.

    Args:
      servers: as for `serve`.
      index: as for `serve`.

    Raises:
      ClusterConfigError: there are no servers, or this one is not among them.
    """
    if servers is not None:
        addresses = addresses_in(servers, "--servers", "servers of tables")
        if index is None and len(addresses) > 1:
            raise ClusterConfigError(
                f"expected --index, this server's place among {len(addresses)} --servers, "
                "received none"
            )
        return ServerGroup.of(addresses, index or 0)
    cluster = Cluster.from_environment()
    if index is not None or cluster.task_type != "ps":
        raise ClusterConfigError(
            "expected --servers with the addresses of all servers, or a ps task in TF_CONFIG, "
            f"received {'--index alone' if index is not None else cluster.task_name}"
        )
    return ServerGroup.of(cluster.ps, cluster.task_index)


def _failed(error: Exception, code: int) -> int:
    text = error.message if isinstance(error, tf.errors.OpError) else str(error)
    print(f"tfdist ps serve: error: {printable(text)}", file=sys.stderr)
    return code
