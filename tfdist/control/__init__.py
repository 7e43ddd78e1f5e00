"""The control plane: how the tasks of a job find each other and how they part.

Every task listens with gRPC on its own address. The ranks meet at rank 0, with two calls:

```
  rank 1            rank 0             rank 2
    |--- Join -------->|                  |       "I am rank 1 of 3, my data port is b:4711"
    |<-- waiting: 2 ---|                  |       a long poll: held until complete or for a while
    |--- Join -------->|<-------- Join ---|
    |<-- complete -----|-- complete ----->|       generation, salt, everybody's data address
    |                  |                  |
    |      ... training on data connections, proven by a key ...
    |                  |                  |
    |--- Exit -------->|<-------- Exit ---|       nobody leaves while others still work
    |<-- complete -----|-- complete ----->|
```

Messages are small JSON objects (`wire`) on generic gRPC handlers. With a shared secret, requests
and answers are signed (`signing`). `meeting` is what rank 0 keeps, free of gRPC; `server` and
`client` carry it over the network; `plane` is what the rest of tfdist uses.
"""

import os

# Read when gRPC is imported, below. Otherwise it tells of each connection that closes when idle.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from tfdist.control.plane import ControlPlane, Membership  # noqa: E402

__all__ = ["ControlPlane", "Membership"]
