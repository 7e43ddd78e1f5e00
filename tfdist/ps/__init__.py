"""Parameter servers: what a job agrees on, how workers attach, how a `ps` task serves.

```
  worker                               ps
    |--- Attach(rank, PsConfig) -------->|   control plane; the first one makes the store, from the
    |<-- address, salt, incarnation -----|   latest snapshot if there is one
    |=== data connection ===============>|   tfdist.ops: pulls and pushes, in C++
    |            ...                     |
    |--- Checkpoint (the chief) -------->|   each server writes its file, the chief the manifest
    |=== leave =========================>|   the server ends when the chief has, and all the others
```

A connection that breaks is made again: the worker attaches anew, and finds out whether it is the
same server (`incarnation`) or one that has started again.
"""
