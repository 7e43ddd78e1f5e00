"""The preemption notice: SIGTERM ends a training after a step, when its state is saved.

`notice` receives the signal. `training` counts the steps of this process, agrees on the last one
with the other workers, and answers whether to stop. Saving is left to the training code:
`tfdist.keras`, `tfdist.estimator` and custom loops. `saved` marks that it was done.
"""
