"""The hosts of a job, and which of them each task runs on. This machine needs no connection."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from tfdist.launch.binding import Binding, Cpu, shares, usable_cpus
from tfdist.launch.gpus import GpuShares
from tfdist.launch.hosts.connection import AgentCommand, HostConnection
from tfdist.launch.hosts.host_list import Host
from tfdist.launch.output import OutputStream, Sink
from tfdist.launch.ports import free_ports
from tfdist.launch.process import LocalProcess, ProcessSpec, TaskProcess


@dataclasses.dataclass(frozen=True)
class JobCommand:
    """The common properties of a job's tasks.

    Attributes:
      python: the path of Python on this machine; on others it is the agent's.
      arguments: the script and its arguments.
      environment: the variables of tasks on this machine.
      passed: the variables of tasks on other hosts, beyond a login's.
      directories: variables for which each other host makes a directory of its own.
    """

    python: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    passed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    directories: Sequence[str] = ()


class Site:
    """A host that tasks run on.

    Args:
      host: the host.
      connection: to its agent; None for this machine.
    """

    def __init__(self, host: Host, connection: HostConnection | None) -> None:
        self.host = host
        self.connection = connection

    @property
    def is_usable(self) -> bool:
        """Whether tasks can be started there."""
        return self.connection is None or self.connection.is_ready

    @property
    def cpus(self) -> Sequence[Cpu]:
        """The CPUs that tasks may use there, in order."""
        return usable_cpus() if self.connection is None else self.connection.cpus

    def free_ports(self, count: int) -> list[int]:
        """Returns ports that are free there.

        Raises:
          OSError: there are too few, or the host is lost.
        """
        if self.connection is None:
            return free_ports(count)
        return self.connection.free_ports(count) if count else []


class HostPool:
    """Starts each task of a job on its host.

    Args:
      command: the common properties of the tasks.
      sites: the hosts.
      placed: the site of each task, by the task's index.
      binding: the unit of CPUs of its host that each task is bound to.
      gpus: the GPUs of each task.

    Attributes:
      sites: the hosts, also lost ones.
    """

    def __init__(
        self,
        command: JobCommand,
        sites: Sequence[Site],
        placed: Sequence[Site],
        binding: Binding = Binding.NONE,
        gpus: GpuShares | None = None,
    ) -> None:
        self._command = command
        self.sites: list[Site] = []
        self._placed = list(placed)
        self._binding = binding
        self._gpus = gpus
        for site in sites:
            self.add(site)

    @property
    def connections(self) -> list[HostConnection]:
        """The connections to other hosts."""
        return [site.connection for site in self.sites if site.connection is not None]

    def add(self, site: Site) -> None:
        """Takes a connected host, and gives its agent what the tasks have in common."""
        self.sites.append(site)
        if site.connection is not None:
            command = self._command
            site.connection.settle(command.arguments, command.passed, command.directories)

    def note_success(self) -> None:
        """Tells the hosts that the job has ended well: their dumps are not kept."""
        for connection in self.connections:
            connection.send("succeeded")

    def site(self, task: int) -> Site:
        """Returns the site of a task."""
        return self._placed[task]

    def move(self, task: int, site: Site) -> None:
        """Lets a task run on another site from its next start on."""
        self._placed[task] = site

    def cpus(self, task: int) -> list[int] | None:
        """Returns the CPUs that a task may use; None is no restriction."""
        if self._binding is Binding.NONE:
            return None
        together = self._tasks_beside(task)
        cpus = self._placed[task].cpus
        return shares(cpus, len(together), self._binding)[together.index(task)]

    def gpus(self, task: int) -> list[int] | None:
        """Returns the GPUs of a task that is about to start; None is no restriction."""
        if self._gpus is None:
            return None
        return self._gpus.of(task, [other for other in self._tasks_beside(task) if other != task])

    def _tasks_beside(self, task: int) -> list[int]:
        """Returns all tasks of the task's host, in order."""
        site = self._placed[task]
        return [index for index, other in enumerate(self._placed) if other is site]

    def start(self, task: int, spec: ProcessSpec, sinks: Sequence[Sink], guard: int) -> TaskProcess:
        """Starts the process of a task on its host.

        Args:
          task: the task's index.
          spec: the task's own properties.
          sinks: receive its stdout and its stderr.
          guard: the pipe to the launcher's guard.

        Raises:
          OSError: it cannot be started, or its host is lost.
        """
        connection = self._placed[task].connection
        if connection is not None:
            return connection.start(task, spec, sinks)
        command = [self._command.python, "-u", *self._command.arguments]
        return LocalProcess(command, self._command.environment, spec, sinks, guard)


def this_machine() -> Site:
    """Returns the site of a job that has no other."""
    return Site(Host("localhost"), None)


class Connector:
    """Connects to hosts, and ends their agents.

    Args:
      own_names: the names of this machine, which needs no connection.
      command: how agents are started.
      stream: receives what ssh and the agents say.
    """

    def __init__(
        self, own_names: Collection[str], command: AgentCommand, stream: OutputStream
    ) -> None:
        self._own_names = own_names
        self._command = command
        self._stream = stream
        self._opened: list[HostConnection] = []

    def connect(self, host: Host) -> HostConnection | None:
        """Begins to connect to a host; returns None if it is this machine.

        Raises:
          HostError: ssh cannot be started.
        """
        if host.is_this_machine(self._own_names):
            return None
        connection = HostConnection(host, self._command, self._stream)
        self._opened.append(connection)
        return connection

    def connect_all(self, hosts: Sequence[Host]) -> list[Site]:
        """Connects to all hosts at once; returns their sites, in order.

        Raises:
          HostError: one of them cannot be reached.
        """
        sites = [Site(host, self.connect(host)) for host in hosts]
        for site in sites:
            if site.connection is not None:
                site.connection.wait_until_ready()
        return sites

    def close(self) -> None:
        """Ends all agents, which kill what is left of their tasks."""
        for connection in self._opened:
            connection.hang_up()
        for connection in self._opened:
            connection.close()
        # Their last output, which no other code writes any more.
        while self._stream.pending:
            self._stream.flush_some()
