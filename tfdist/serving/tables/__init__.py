"""Servers of the rows of a snapshot, and the connections of processes that look rows up.

```
  training                 folder                    ps serve                     serving.load
    |-- snapshots, or ------>|                          |                              |
    |   ps follow: deltas    |<-- reads, then follows --|                              |
    |                        |                          |<-- Describe (control plane) -|
    |                        |                          |--- tables, partitions ------>|
    |                        |                          |<== lookups (data plane) =====|
```

Ids belong to as many partitions as there are servers. Each partition is on `replicas` servers,
which follow each other on the ring of servers (`ring`); a server has a store for each of its
partitions. A client has a connection for each partition. When that breaks, it connects to the next
copy, and repeats what was not answered: the lookup only takes longer.
"""
