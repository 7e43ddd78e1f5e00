"""The control plane: rendezvous and exit of a job's tasks, and calls to its parameter servers.

Every task listens with gRPC on its own address. Rank 0 serves the rendezvous with two methods:

```
  rank 1            rank 0             rank 2
    |--- Join -------->|                  |       "I am rank 1 of 3, my data port is b:4711"
    |<-- waiting: 2 ---|                  |       a long poll: held until complete, or some seconds
    |--- Join -------->|<-------- Join ---|
    |<-- complete -----|-- complete ----->|       generation, salt, data addresses of all ranks
    |                  |                  |
    |      ... training on data connections, which a key authenticates ...
    |                  |                  |
    |--- Exit -------->|<-------- Exit ---|       no rank leaves while others still work
    |<-- complete -----|-- complete ----->|
```

Messages are small JSON objects (`messages`) on generic gRPC handlers. With a shared secret,
requests and answers are signed (`signing`). `rendezvous` is rank 0's state, without networking;
`server` and `client` carry it over the network; `plane` is the interface for the rest of tfdist.
`connections` bounds those of strangers to a server, and `refusals` their share of its log.
`stop_board` and `stop_watch` are the two sides of the agreement on the last step of a job that is
told to end. An elastic job, whose tasks may die and join, has no fixed rank 0: `founders` begin it,
`generations` is what each of its processes knows and decides, `members` what they say of each
other, and `probes` how they tell the living from the dead; `tfdist.elastic` carries it over the
network.
"""

from tfdist.config import settings

# gRPC reads this when it is imported, below.
settings.default_grpc_verbosity()

from tfdist.control.plane import ControlPlane, RendezvousResult  # noqa: E402

__all__ = ["ControlPlane", "RendezvousResult"]
