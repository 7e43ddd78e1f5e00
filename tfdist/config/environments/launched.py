"""The process that a launcher has started, as an environment describes it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from tfdist.config.validation import show
from tfdist.errors import ClusterConfigError

# More processes than any job has. Limits what a broken variable can cost.
MAX_PROCESSES = 65536


@dataclasses.dataclass(frozen=True)
class LaunchedProcess:
    """The index of this process among the processes that a launcher has started.

    Args:
      launcher: the launcher's name in messages.
      index: of this process, from 0.
      size: the number of processes.
      index_variable: the variable that gives the index.
      size_variable: the variable or variables that give the size.
    """

    launcher: str
    index: int
    size: int
    index_variable: str
    size_variable: str

    def __post_init__(self) -> None:
        if not 0 < self.size <= MAX_PROCESSES:
            raise ClusterConfigError(
                f"{self.launcher}: expected 1 to {MAX_PROCESSES} processes, received "
                f"{self.size_variable}={self.size}"
            )
        if not 0 <= self.index < self.size:
            raise ClusterConfigError(
                f"{self.launcher}: expected {self.index_variable} in 0..{self.size - 1}, since "
                f"{self.size_variable}={self.size}, received {self.index_variable}={self.index}"
            )


@dataclasses.dataclass(frozen=True)
class Remark:
    """Variables of a launcher that do not make this process a rank.

    Args:
      text: which ones, and why they are ignored.
      is_warning: whether a user who trains alone because of this probably does not want that.
    """

    text: str
    is_warning: bool = False


@dataclasses.dataclass(frozen=True)
class HostExchange:
    """Processes of several hosts that know the host of the first one only.

    Args:
      index: of this process.
      size: the number of processes.
      servers: how many of them, the last ones, are parameter servers.
      host: the host of process 0.
      first_port: the port of process 0; process i has port `first_port` + i on its host.
    """

    index: int
    size: int
    servers: int
    host: str
    first_port: int

    @property
    def address(self) -> str:
        """The "host:port" at which process 0 collects the hosts."""
        return f"{self.host}:{self.first_port + self.size}"

    def port(self, index: int) -> int:
        """Returns the port of a process on its host."""
        return self.first_port + index


@dataclasses.dataclass(frozen=True)
class LaunchedTasks:
    """The tasks of a job, and this process's own, as a launcher numbers its processes.

    Args:
      addresses: "host:port" of each task, by role.
      role: of this process.
      index: of this process among the processes of its role.
    """

    addresses: Mapping[str, Sequence[str]]
    role: str
    index: int


@dataclasses.dataclass(frozen=True)
class DetectedCluster:
    """The cluster that an environment describes; this process trains alone if nothing does.

    Args:
      source: the environment that describes it, such as "Slurm"; "nothing" if no variable does.
      notes: why: the variables that were read, then the ignored variables, each with a reason.
      warnings: notes that the user should see without asking.
      tf_config: the text of `TF_CONFIG`, which describes a job completely.
      tasks: as a launcher describes them.
      exchange: where the processes tell each other their hosts, which no variable names.
    """

    source: str
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    tf_config: str | None = None
    tasks: LaunchedTasks | None = None
    exchange: HostExchange | None = None


def whole(environ: Mapping[str, str], name: str) -> int | None:
    """Returns the whole number in variable `name`, 0 or more; None if it is not set or empty.

    Raises:
      ClusterConfigError: the variable holds something else.
    """
    text = environ.get(name, "").strip()
    if not text:
        return None
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    raise ClusterConfigError(f"{name}: expected a whole number, 0 or more, received {show(text)}")


def required(environ: Mapping[str, str], name: str, beside: str) -> int:
    """Returns the whole number in variable `name`, which comes with variable `beside`.

    Raises:
      ClusterConfigError: the variable is not set, or holds something else.
    """
    value = whole(environ, name)
    if value is None:
        raise ClusterConfigError(f"{name}: expected a whole number beside {beside}, received none")
    return value


def shown(environ: Mapping[str, str], names: Sequence[str]) -> str:
    """Returns "NAME=value, ..." of those variables that are set."""
    return ", ".join(f"{name}={environ[name][:100]}" for name in names if environ.get(name))
