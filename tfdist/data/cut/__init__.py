"""Moves a worker's cut of the global batches before the maps: each worker maps its own rows only.

    one process           source -> shuffle -> map -> batch
    cut at the end        source -> shuffle -> map -> batch -> this worker's rows
    cut before the maps   source -> shuffle -> batch -> this worker's rows -> map -> batch

All three have the same batches in the same order. `plan.py` reads a pipeline, and says how it is
cut, or why not; `share.py` makes a worker's pipeline; `ahead.py` makes one of an elastic job, whose
workers change; `nodes.py` knows the classes of `tf.data`.
"""
