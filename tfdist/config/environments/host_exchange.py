"""Launchers that name the host of rank 0 at most: `MASTER_ADDR`, or all ranks are on one host.

Rank r has port p + r, where p is `MASTER_PORT` + 1 or the launcher's own. With several hosts the
processes tell rank 0 their hosts, at port p + size, and receive all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from tfdist.config import validation
from tfdist.config.environments.launched import HostExchange, LaunchedProcess, shown, whole
from tfdist.errors import ClusterConfigError


def addresses(
    environ: Mapping[str, str],
    launched: LaunchedProcess,
    launcher: ModuleType,
    servers: int,
    needs_others: bool,
) -> tuple[list[str] | HostExchange, str]:
    """Returns "host:port" of each process if all are on this host, else where they meet.

    Args:
      environ: variables by name.
      launched: this process.
      launcher: the module of its launcher.
      servers: the number of parameter servers.
      needs_others: whether this process must reach the others; else they need no address of their
        own hosts.

    Returns:
      The addresses or the exchange, and the variables that gave them.

    Raises:
      ClusterConfigError: nothing says where rank 0 is, or a variable is unusable.
    """
    host = environ.get("MASTER_ADDR", "").strip()
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    local_variable = launcher.local_size_variable(environ)
    is_one_host = launcher.is_one_host(environ, launched)
    if is_one_host is None and host in ("localhost", "127.0.0.1", "[::1]"):
        is_one_host = True
    is_loopback = is_one_host or not needs_others
    if not is_loopback and not host:
        local = shown(environ, (local_variable,)) or f"no {local_variable}"
        raise ClusterConfigError(
            f"{launched.launcher}: expected MASTER_ADDR, the host of rank 0, since the "
            f"{launched.size} ranks may be on several hosts "
            f"({launched.size_variable}={launched.size}, {local}), received none; "
            "set it to 127.0.0.1 if all are on this host"
            + (", or start them with srun" if environ.get("SLURM_JOB_ID") else "")
        )
    first, origin = launcher.first_port(environ)
    if environ.get("MASTER_PORT"):
        origin = shown(environ, ("MASTER_PORT",))
        first = (whole(environ, "MASTER_PORT") or 0) + 1
    last = first + launched.size
    if first < 2 or last > 65535:
        raise ClusterConfigError(
            f"{launched.launcher}: expected MASTER_PORT in 1..{65535 - 1 - launched.size}, since "
            f"rank r of {launched.size} listens on MASTER_PORT + 1 + r, received {first - 1}"
        )
    ports = f"ports: from {first} on, by {origin}"
    if is_loopback:
        where = shown(environ, (local_variable,)) or (
            f"MASTER_ADDR={host}" if is_one_host else "no other process is asked"
        )
        return [f"127.0.0.1:{first + rank}" for rank in range(launched.size)], f"{where}; {ports}"
    problem = validation.address_problem(f"{host}:{first}")
    if problem:
        raise ClusterConfigError(
            f"MASTER_ADDR: expected the host of rank 0, received {validation.show(host)}: {problem}"
        )
    return (
        HostExchange(launched.index, launched.size, servers, host, first),
        f"{shown(environ, ('MASTER_ADDR', local_variable))}; {ports}",
    )
