"""The hosts of an elastic job: they come and go, and its workers move between them.

A worker keeps its host, and with it its address, for as long as the host can be used. Else its next
start is on a host with a free slot, at a new address there. Workers that run already learn it when
the newcomer asks them; later workers have it in their `TF_CONFIG`.
"""

from __future__ import annotations

import dataclasses
import errno
import time
from collections.abc import Callable, Collection, Sequence

from tfdist.config.cluster import Cluster
from tfdist.launch.hosts.connection import HostConnection, HostError
from tfdist.launch.hosts.cooldown import Cooldown, Cooldowns
from tfdist.launch.hosts.host_list import Host
from tfdist.launch.hosts.pool import HostPool, Site
from tfdist.launch.task import TaskSpec

# Seconds until a host that could not be reached is tried again, doubled each time.
_FIRST_RETRY = 5.0
_LONGEST_RETRY = 60.0


class NoRoomYetError(HostError):
    """No host has a free slot, except hosts that are left out for some time."""


@dataclasses.dataclass(frozen=True)
class HostChanges:
    """The consequences of other hosts than before.

    Attributes:
      leave: the slots of workers that must leave their hosts.
      lines: the events, for the user.
    """

    leave: Sequence[int]
    lines: Sequence[str]


class ElasticHosts:
    """Places the workers of an elastic job.

    Args:
      pool: starts the tasks; its sites are the hosts of the beginning.
      specs: the workers, by slot, and then the parameter servers.
      connect: begins to connect to a new host.
      cooldown: when hosts are left out.
    """

    def __init__(
        self,
        pool: HostPool,
        specs: Sequence[TaskSpec],
        connect: Callable[[Host], HostConnection | None],
        cooldown: Cooldown,
    ) -> None:
        self._pool = pool
        self._specs = list(specs)
        self._connect = connect
        self._cooldowns = Cooldowns(cooldown)
        self._addresses = list(Cluster.from_tf_config(specs[0].tf_config).workers)
        # The hosts that there are, by name; sites of others take no worker.
        self._named: dict[str, Host] = {site.host.name: site.host for site in pool.sites}
        self._connecting: list[Site] = []
        # Of hosts that could not be reached: when to try again, and the wait after that.
        self._retries: dict[str, tuple[float, float]] = {}

    def place(
        self, slot: int, occupied: Collection[int], reserved: Collection[int] = ()
    ) -> TaskSpec:
        """Chooses the host of a task that is about to start.

        Args:
          slot: its slot.
          occupied: the slots of the workers that run.
          reserved: the slots that keep their hosts from the workers of others.

        Returns:
          The task, with its address and all other tasks'.

        Raises:
          NoRoomYetError: no host has a free slot, except one left out.
          HostError: no host has a free slot.
        """
        spec = self._specs[slot]
        if spec.trains:
            site = self._pool.site(slot)
            others = [other for other in occupied if other != slot]
            if not self._has_room(site, others):
                site = self._another([*others, *(other for other in reserved if other != slot)])
                (port,) = site.free_ports(1)
                self._addresses[slot] = site.host.listens_at(port)
                self._pool.move(slot, site)
        cluster = Cluster.from_tf_config(spec.tf_config)
        cluster = dataclasses.replace(cluster, workers=tuple(self._addresses))
        host = self._pool.site(slot).host.name
        return dataclasses.replace(spec, tf_config=cluster.tf_config(), host=host)

    def capacity(self, occupied: Collection[int]) -> int:
        """The number of workers that the usable hosts take.

        Args:
          occupied: the slots of the workers that run, which a host that is left out keeps.
        """
        wanted = [site for site in self._pool.sites if self._is_wanted(site)]
        return sum(
            self._workers_on(site, occupied) if self._is_left_out(site) else site.host.slots
            for site in wanted
        )

    def is_failing(self, slot: int, started: float, ended: float) -> bool:
        """Notes the failure of a worker; returns whether its host is to be left out.

        A job's only host never is.

        Args:
          slot: its slot.
          started: the monotonic time of its start.
          ended: the time of its end.
        """
        site = self._pool.site(slot)
        others = (other for other in self._pool.sites if other is not site)
        is_failing = self._cooldowns.failed(site.host.name, started, ended)
        return is_failing and any(self._is_wanted(other) for other in others)

    def leave_out(self, slot: int) -> tuple[str, float, str]:
        """Leaves out the host of a slot, on which workers have failed; its running workers stay.

        Returns:
          Its name, the seconds until it is to be tried again, and the reason in words.
        """
        name = self._pool.site(slot).host.name
        return name, *self._cooldowns.leave_out(name, time.monotonic())

    def on_host_of(self, slot: int) -> list[int]:
        """Returns the slots of the workers on the host of a slot."""
        site = self._pool.site(slot)
        return [
            other
            for other, spec in enumerate(self._specs)
            if spec.trains and self._pool.site(other) is site
        ]

    def update(self, hosts: Sequence[Host], running: Collection[int]) -> HostChanges:
        """Takes the hosts that there are now.

        Args:
          hosts: the hosts.
          running: the slots of the workers that run, and were not told to leave.
        """
        lines = []
        named = {host.name: host for host in hosts}
        before = self._named
        for name, host in before.items():
            if name not in named:
                lines.append(f"host {name} is gone")
            elif named[name].slots != host.slots:
                lines.append(f"host {name} has {named[name].slots} slots, had {host.slots}")
        self._named = named
        known = {site.host.name: site for site in (*self._pool.sites, *self._connecting)}
        for name, host in named.items():
            site = known.get(name)
            if site is not None and not (site.connection and site.connection.is_lost):
                if name not in before:
                    lines.append(f"host {name} is back")
                site.host = host
                continue
            if time.monotonic() < self._retries.get(name, (0.0, 0.0))[0]:
                continue
            try:
                self._connecting.append(Site(host, self._connect(host)))
            except HostError as error:
                lines.append(self._not_reached(host, error))
        return HostChanges(self._excess(running), lines)

    def take_connected(self) -> list[str]:
        """Takes the new hosts that are connected by now; returns what happened, as lines."""
        lines = []
        for site in list(self._connecting):
            found = site.connection
            if found is not None and found.is_lost:
                lines.append(self._not_reached(site.host, found.error()))
                self._connecting.remove(site)
            elif site.is_usable:
                self._connecting.remove(site)
                self._pool.add(site)
                self._retries.pop(site.host.name, None)
                lines.append(f"host {site.host.name} has come, with {site.host.slots} slots")
        return lines

    def _not_reached(self, host: Host, error: HostError) -> str:
        _, wait = self._retries.get(host.name, (0.0, _FIRST_RETRY))
        self._retries[host.name] = (time.monotonic() + wait, min(2 * wait, _LONGEST_RETRY))
        return f"{error}; trying again in {wait:g} s"

    def _excess(self, running: Collection[int]) -> list[int]:
        """Returns the workers beyond their hosts' slots."""
        excess: list[int] = []
        for site in self._pool.sites:
            there = [slot for slot in sorted(running) if self._pool.site(slot) is site]
            kept = site.host.slots if self._is_wanted(site) else 0
            excess += there[kept:]
        return excess

    def _is_wanted(self, site: Site) -> bool:
        return site.is_usable and site.host.name in self._named

    def _has_room(self, site: Site, occupied: Sequence[int]) -> bool:
        return not self._is_left_out(site) and self._would_have_room(site, occupied)

    def _would_have_room(self, site: Site, occupied: Sequence[int]) -> bool:
        return self._is_wanted(site) and self._workers_on(site, occupied) < site.host.slots

    def _is_left_out(self, site: Site) -> bool:
        return self._cooldowns.is_left_out(site.host.name, time.monotonic())

    def _workers_on(self, site: Site, occupied: Collection[int]) -> int:
        return sum(self._pool.site(slot) is site for slot in occupied)

    def _another(self, occupied: Sequence[int]) -> Site:
        for site in self._pool.sites:
            if self._has_room(site, occupied):
                return site
        for site in self._pool.sites:
            if self._would_have_room(site, occupied):
                name = site.host.name
                raise NoRoomYetError(errno.EAGAIN, f"no host but {name} has a free slot")
        raise HostError(errno.EHOSTUNREACH, "no host has a free slot")
