"""Hosts on which workers fail again and again take no worker for some time. Pure: at given times.

             3 failures within 5 minutes            cool-down is over
    HEALTHY -----------------------------> LEFT OUT -----------------> ON TRIAL
       ^                                       ^                          |  |
       |                                       \\-- the next failure ------/  |
       \\------------- a worker has lived there for 5 minutes ---------------/

The *cool-down* doubles each time that the host fails its trial, up to a limit. Workers of a host
that die together, for one reason, are one failure: of them, and of workers started before the last
failure, only the first one counts.
"""

from __future__ import annotations

import dataclasses

from tfdist.errors import ClusterConfigError


@dataclasses.dataclass(frozen=True)
class Cooldown:
    """When a host is left out, and for how long.

    Args:
      first: seconds of the first cool-down.
      longest: the most seconds.
      failures: the number after which a host is left out.
      window: seconds within which they come; and the life of a worker that ends a trial.

    Raises:
      ClusterConfigError: `longest` is less than `first`.
    """

    first: float = 30.0
    longest: float = 600.0
    failures: int = 3
    window: float = 300.0

    def __post_init__(self) -> None:
        if self.longest < self.first:
            raise ClusterConfigError(
                "--blacklist-cooldown-range: expected the longest cool-down to be at least the "
                f"first one, {self.first:g} s, received {self.longest:g} s"
            )


@dataclasses.dataclass
class _Host:
    # The times of the failures that count.
    failures: list[float] = dataclasses.field(default_factory=list)
    last: float = float("-inf")
    # How often it was left out since it was healthy.
    cooldowns: int = 0
    until: float = float("-inf")


class Cooldowns:
    """The hosts of a job on which workers have failed.

    Args:
      cooldown: when they are left out.
    """

    def __init__(self, cooldown: Cooldown) -> None:
        self._cooldown = cooldown
        self._hosts: dict[str, _Host] = {}

    def failed(self, host: str, started: float, ended: float) -> bool:
        """Notes the failure of a worker; returns whether its host is to be left out.

        Args:
          host: the host's name.
          started: when the worker was started there, in seconds of some clock.
          ended: when it ended.
        """
        found = self._hosts.setdefault(host, _Host())
        if started <= found.last:
            return False
        found.last = ended
        if ended - started >= self._cooldown.window:
            found.cooldowns = 0
        since = ended - self._cooldown.window
        found.failures = [*(time for time in found.failures if time > since), ended]
        return found.cooldowns > 0 or len(found.failures) >= self._cooldown.failures

    def leave_out(self, host: str, now: float) -> tuple[float, str]:
        """Begins the cool-down of a host that is to be left out.

        Returns:
          Its seconds, and the reason in words.
        """
        found = self._hosts[host]
        # Not 2**cooldowns of any number, which has no limit.
        seconds = self._cooldown.first * 2.0 ** min(found.cooldowns, 60)
        seconds = min(self._cooldown.longest, seconds)
        reason = (
            "a worker has failed again since it was tried again"
            if found.cooldowns
            else f"workers have failed there {len(found.failures)} times within "
            f"{self._cooldown.window:g} s"
        )
        found.cooldowns += 1
        found.failures.clear()
        found.until = now + seconds
        return seconds, reason

    def is_left_out(self, host: str, now: float) -> bool:
        """Whether a host takes no worker now."""
        return host in self._hosts and now < self._hosts[host].until
