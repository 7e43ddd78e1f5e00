"""Services: groups of methods with one version, each of which has one kind of request.

A service keeps its requests beside what it serves, and a server gets the handlers of the methods
that it answers:

```
    TASKS = Service("Tasks", 1, "the task that deals out the job's data tasks")
    LEASE = TASKS.method(TaskLeaseRequest)
    ControlServer(cluster, secret, {LEASE: master.lease})
    ControlClient(...).call(LEASE, TaskLeaseRequest(...), wait, patient=True)
```

A call names the service's version in its path, "/tfdist.Tasks.1/TaskLease". A server refuses a
caller of another version before it reads the request, whose fields may be others.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from tfdist.control.encoding import wire_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_PATH = re.compile(r"/tfdist\.([A-Za-z]{1,40})(?:\.([0-9]{1,6}))?/([A-Za-z]{1,40})", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Service:
    """A group of methods.

    Attributes:
      name: in the paths of its calls.
      version: is raised when a request, an answer or its meaning changes.
      provider: the task that has it, for callers that have called another one.
    """

    name: str
    version: int
    provider: str

    def method(
        self, request: type[DataclassInstance], *, is_quick: bool = False, is_long: bool = False
    ) -> Method:
        """Returns the method for a kind of request, a dataclass whose name ends in "Request".

        Args:
          request: the class; see `encoding` for its fields.
          is_quick: whether its handler never waits, and runs in the thread that receives calls.
          is_long: whether its requests may be too long for one call; see `pieces`.
        """
        return Method(self, wire_name(request), request, is_quick, is_long)


@dataclasses.dataclass(frozen=True)
class Method:
    """A method of a service.

    Attributes:
      service: the service.
      name: in the path of its calls.
      request: the class of its requests.
      is_quick, is_long: as for `Service.method`.
    """

    service: Service
    name: str
    request: type[Any]
    is_quick: bool = False
    is_long: bool = False

    @property
    def path(self) -> str:
        """The path of its calls."""
        return f"/tfdist.{self.service.name}.{self.service.version}/{self.name}"


TRANSPORT = Service("Control", 1, "a task of tfdist")
# Of a call with an empty body; the answer has "challenge", see `signing`.
CHALLENGE = f"/tfdist.{TRANSPORT.name}.{TRANSPORT.version}/Challenge"


@dataclasses.dataclass(frozen=True)
class CallPath:
    """The path of a call to any tfdist.

    Attributes:
      service: the name of the service.
      version: of the caller's service; 0 if the path has none.
      method: the name of the method.
    """

    service: str
    version: int
    method: str

    @classmethod
    def parse(cls, path: str) -> CallPath | None:
        """Returns the parts of a path; None if it is not one of tfdist."""
        found = _PATH.fullmatch(path)
        return cls(found[1], int(found[2] or 0), found[3]) if found else None
