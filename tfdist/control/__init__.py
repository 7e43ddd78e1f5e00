"""Signed calls between the tasks of a job: the transport of its services.

Every task listens with gRPC on its own address. A caller may ask the other task to hold a call
until it can answer it:

```
  rank 1            rank 0             rank 2
    |--- Join -------->|                  |       "I am rank 1 of 3, my data port is b:4711"
    |<-- waiting: 2 ---|                  |       a long poll: held until complete, or some seconds
    |--- Join -------->|<-------- Join ---|
    |<-- complete -----|-- complete ----->|       generation, salt, data addresses of all ranks
```

`server` and `client` carry messages, JSON objects on generic gRPC handlers, over the network. With
a shared secret, requests and answers are signed (`signing`). `held_calls` holds calls,
`connections` bounds those of strangers to a server, and `refusals` their share of its log.
`waiting` is how a task waits for another one.
"""

from tfdist.config import settings

# gRPC reads this when it is imported by a module of this package.
settings.default_grpc_verbosity()
