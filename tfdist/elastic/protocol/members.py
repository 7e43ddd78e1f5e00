"""The members of an elastic job, and its generations, as messages carry them."""

from __future__ import annotations

import dataclasses
import functools

from tfdist.config import validation
from tfdist.config.elastic import MAX_WORKERS
from tfdist.control import encoding, signing
from tfdist.control.encoding import MessageError


@dataclasses.dataclass(frozen=True)
class Member:
    """One process of an elastic job, for its life.

    Attributes:
      process: unique per process, so that a restarted task is another member.
      name: its task's name in messages, such as "worker 3".
      address: its control address, "host:port".
    """

    process: str
    name: str
    address: str

    def __str__(self) -> str:
        return f"{self.name} at {self.address}"

    @classmethod
    def from_fields(cls, fields: object) -> Member:
        """Returns the member that a JSON object of a message describes.

        Raises:
          MessageError: it describes none.
        """
        if not isinstance(fields, dict):
            raise MessageError(
                f"expected a member as an object, received {validation.show(fields)}"
            )
        process, name, address = (fields.get(key) for key in ("process", "name", "address"))
        problem = problem_with_member(process, name, address)
        if problem:
            raise MessageError(problem)
        return cls(str(process), str(name), str(address))


@dataclasses.dataclass(frozen=True)
class Generation:
    """The members of an elastic job between two changes.

    Attributes:
      number: 1, 2, ...
      members: in the order of their ranks.
      newcomers: the processes among them that did not hold the job's state when it was formed.
      job: random; identifies the job, from its founding to its end. Its processes alone know it.
      salt: random, for the key of the data connections. The members alone know it.
    """

    number: int
    members: tuple[Member, ...]
    newcomers: frozenset[str]
    job: str
    salt: str

    def __contains__(self, process: object) -> bool:
        return any(member.process == process for member in self.members)

    @property
    def processes(self) -> frozenset[str]:
        """The ids of all members."""
        return frozenset(member.process for member in self.members)

    def rank(self, process: str) -> int:
        """Returns the rank of a member."""
        return [member.process for member in self.members].index(process)

    @functools.cached_property
    def mark(self) -> str:
        """Identifies the generation among its members, and tells others nothing of it."""
        return signing.proof(self.salt, "generation", body=encoding.encode(self.to_fields()))

    def to_fields(self) -> dict[str, object]:
        """Returns the object from which `from_fields` makes an equal generation."""
        return {
            "number": self.number,
            "members": [dataclasses.asdict(member) for member in self.members],
            "newcomers": sorted(self.newcomers),
            "job": self.job,
            "salt": self.salt,
        }

    @classmethod
    def from_fields(cls, fields: object) -> Generation:
        """Returns the generation that a JSON object of a message describes.

        Raises:
          MessageError: it describes none.
        """
        if not isinstance(fields, dict):
            raise MessageError(
                f"expected a generation as an object, received {validation.show(fields)}"
            )
        number, members, newcomers = (fields.get(k) for k in ("number", "members", "newcomers"))
        job, salt = fields.get("job"), fields.get("salt")
        if not (
            isinstance(number, int)
            and 0 < number < 2**63
            and isinstance(members, list)
            and 0 < len(members) <= MAX_WORKERS
            and isinstance(newcomers, list)
            and all(isinstance(process, str) for process in newcomers)
            and isinstance(job, str)
            and isinstance(salt, str)
        ):
            raise MessageError(f"expected a generation, received {validation.show(fields)}")
        return cls(number, tuple(map(Member.from_fields, members)), frozenset(newcomers), job, salt)


def problem_with_member(process: object, name: object, address: object) -> str | None:
    """Returns why a message describes no member, or None."""
    if not isinstance(process, str) or not process or len(process) > 64:
        return f"expected a process to be 1 to 64 characters, received {validation.show(process)}"
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 64:
        return f"expected a task's name, received {validation.show(name)}"
    if not isinstance(address, str):
        return f'expected a task\'s address to be "host:port", received {validation.show(address)}'
    problem = validation.address_problem(address)
    return f"{name}: {problem}" if problem else None
