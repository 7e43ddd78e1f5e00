"""Data-parallel training without a strategy, in the manner of Horovod.

Each rank runs an ordinary program on batches of its own; what it wraps, the optimizer or the tape,
makes the ranks take the same steps. Sergeev and Del Balso, "Horovod: fast and easy distributed deep
learning in TensorFlow", 2018. docs/porting.md shows it.

| File | Holds |
|---|---|
| `reduction.py` | gradients of one rank become those of all |
| `tape.py` | for loops of the user's own |
| `optimizer.py`, `keras_optimizer.py`, `legacy_optimizer.py` | for both Kerases |
| `local_variables.py`, `partial.py` | variables and layers of each rank's own |
| `slots.py` | what an optimizer holds for one variable |
| `accumulation.py` | several backward passes for each step |
| `batch_normalization.py` | statistics of all ranks |
| `broadcast.py`, `metrics.py`, `learning_rate.py` | callbacks |
"""
