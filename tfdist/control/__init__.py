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

This package knows no subject. A *service* keeps its requests beside what it serves, in a module
`messages`, and its owner gives their handlers to the server (`service`). `encoding` turns messages
into bytes and checks each field. `server` and `client` carry them over the network, on generic gRPC
handlers, and a long request in pieces (`pieces`). With a shared secret, requests and answers are
signed (`signing`). `callers` compares the jobs of two tasks. `held_calls` holds calls,
`connections` bounds strangers' connections to a server, and `refusals` their share of its log.
`waiting` is how a task waits for another one.
"""

from tfdist.config import settings

# gRPC reads this when it is imported by a module of this package.
settings.default_grpc_verbosity()
