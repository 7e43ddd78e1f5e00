"""The preemption notice: SIGTERM ends a training after a step, when its state is saved.

`notice` receives the signal. `training` counts the steps of this process, agrees on the last one
with the other workers, and answers whether to stop. What is saved, and where, is the business of
those that train: `tfdist.keras`, `tfdist.estimator` and custom loops.
"""
