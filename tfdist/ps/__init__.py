"""Parameter servers: the job's configuration, the workers' connections, and the `ps` task.

```
  worker                               ps
    |--- Attach(rank, PsConfig) -------->|   control plane; the first call makes the store, from the
    |<-- address, salt, incarnation -----|   latest snapshot if there is one
    |=== data connection ===============>|   tfdist.ops: pulls and pushes, in C++
    |            ...                     |
    |--- Checkpoint (the chief) -------->|   each server writes its file, the chief the manifest
    |=== leave =========================>|   the server ends when the chief and all others have left
```

When a connection breaks, the worker attaches again. `incarnation` tells it whether the server is
still the same process or was started again.
"""
