"""The timeline of a job: the work of all its tasks, in one file, on one clock.

| Module | Concept |
|---|---|
| `parts.py` | the file that each task writes, and who merges them |
| `recording.py` | a task's thread that empties the flight recorder into its part |
| `alignment.py` | the clocks of the parts |
| `slices.py` | events as slices of a trace, and the phases of steps |
| `merge.py` | the parts as one file in Chrome's format |
"""
