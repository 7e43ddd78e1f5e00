"""Looking at a running job: `tfdist top` and `tfdist dashboard`; see docs/operate/dashboard.md.

| File | Holds |
|---|---|
| `records.py` | what a task tells, and what a job does between two looks at it |
| `sampler.py` | asks all tasks of a job at once |
| `targets.py` | where the tasks of a job are, and the token for them |
| `table.py`, `top.py` | the terminal |
| `dashboard.py`, `page/` | the web page |
| `job_progress.py` | where the training of a job stands, for `tfdist jobs` |
| `job_record.py`, `last_states.py` | the end of a job, and what its tasks have left |

Nothing here imports TensorFlow.
"""
