"""The queues that deal out the records of a job's data, and the master that keeps them.

| File | Holds |
|---|---|
| `queue.py` | one queue: its tasks, their owners and leases; no clock, thread or networking |
| `description.py` | what workers must agree on before they share a queue, and the tasks' places |
| `master.py` | the job's queues, behind the control server of one of its tasks |
| `client.py` | a worker's calls to the master |
| `positions.py` | where each task stands; with parameter servers ps 0 keeps it beside the values |
| `messages.py` | the calls of the service |
| `report.py` | what `tfdist tasks` prints |

`tfdist.data` makes datasets of them. Nothing here imports TensorFlow.
"""
