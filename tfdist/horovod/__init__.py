"""Training without a strategy, with the API of Horovod.

Each rank runs an ordinary program on batches of its own. The wrapped optimizer or gradient tape
makes all ranks take the same steps. Sergeev and Del Balso, "Horovod: fast and easy distributed deep
learning in TensorFlow", 2018. docs/porting.md shows it.

| File | Holds |
|---|---|
| `reduction.py` | reduces gradients over the ranks |
| `tape.py` | the gradient tape, for custom loops |
| `optimizer.py`, `keras_optimizer.py`, `legacy_optimizer.py` | the optimizer, for both Kerases |
| `local_variables.py`, `partial.py` | variables and layers that belong to one rank |
| `slots.py` | the slot variables of an optimizer |
| `accumulation.py` | several backward passes per step |
| `sync_batch_normalization.py` | batch normalization with the statistics of all ranks |
| `broadcast.py`, `metrics.py`, `learning_rate.py` | callbacks |
"""
