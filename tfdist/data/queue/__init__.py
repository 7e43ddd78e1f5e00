"""The queues that deal out the records of a job's data, and the master that keeps them.

| File | Holds |
|---|---|
| `queue.py` | one queue: its tasks, their owners and leases; no clock, thread or networking |
| `description.py` | what workers must agree on before they share a queue, and the tasks' places |
| `master.py` | the job's queues, behind the control server of one of its tasks |
| `client.py` | a worker's calls to the master |
| `report.py`, `command.py` | the command `tfdist tasks` |

`tfdist.data` makes datasets of them. Nothing here imports TensorFlow.
"""
