"""A gradient tape whose gradients are those of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.compression import Compression, Compressor, PowerSGD, TopK, method_of
from tfdist.horovod.reduction import Reduction


class DistributedGradientTape:
    """Wraps a `tf.GradientTape`: `gradient` returns the mean or sum over all ranks.

    Everything else is the tape's own; `jacobian` and `batch_jacobian` are of this rank alone. Where
    the optimizer is a `tfdist.DistributedOptimizer` take an ordinary tape.

    Args:
      tape: the tape, which has recorded or will.
      gradient_reduction: "mean" or "sum". The mean fits losses that are means over a rank's batch.
      compression: how gradients travel: "fp16", "bf16" or `None`, which means as they are. Other
        methods keep something for the next step, and tapes live for one: give them the same
        `tfdist.compression.compressor("topk")`.
      scale_local_gradients: whether gradients of local variables are divided by the number of
        ranks, as those that are averaged.

    Raises:
      ValueError: another `gradient_reduction` or `compression`; or a strategy is in use, which
        reduces gradients itself; or the tape is wrapped already.
      tfdist.errors.NotInitializedError: `gradient` is called before `tfdist.init()`.

    Example:

    ```python
    with tf.GradientTape() as tape:
        loss = loss_of(model(x, training=True), y)
    tape = tfdist.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    ```
    """

    def __init__(
        self,
        tape: tf.GradientTape,
        gradient_reduction: str = "mean",
        compression: str | Compression | Compressor | type | None = None,
        scale_local_gradients: bool = True,
    ) -> None:
        asked = "tfdist.DistributedGradientTape"
        if not isinstance(compression, Compressor):
            compression = method_of(compression)
            if isinstance(compression, TopK | PowerSGD):
                raise ValueError(
                    f"{asked}: expected something that outlives the tape, such as "
                    f"tfdist.compression.compressor({compression}), received {compression}, which "
                    "keeps what it has not sent for the next step"
                )
        if isinstance(tape, DistributedGradientTape):
            raise ValueError(f"{asked}: this tape is one already, and would reduce twice")
        if not isinstance(tape, tf.GradientTape):
            raise TypeError(f"{asked}: expected a tf.GradientTape, received {tape!r}")
        self._tape = tape
        self._reduction = Reduction(asked, gradient_reduction, compression, scale_local_gradients)

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._tape.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._tape, name)

    def register_local_var(self, variable: Any) -> None:
        """Makes a variable local to each rank: its gradients are not reduced.

        Args:
          variable: of TensorFlow or Keras, or a tensor that is a source of `gradient`.

        Raises:
          TypeError: something else.
        """
        self._reduction.local.register(variable)

    def register_local_source(self, source: Any) -> None:
        """As `register_local_var`, by the name that it has on Horovod's tape."""
        self.register_local_var(source)

    def gradient(self, target: Any, sources: Any, *arguments: Any, **options: Any) -> Any:
        """Computes gradients as `tf.GradientTape.gradient` does, and reduces them over all ranks.

        Args:
          target: as for `tf.GradientTape.gradient`.
          sources: likewise; the same on every rank.
          *arguments: further ones of `tf.GradientTape.gradient`.
          **options: likewise.

        Returns:
          The structure of `sources`, with the same values on every rank, but for local variables.
          What is unconnected to the target is None. Gradients of embeddings are `tf.IndexedSlices`,
          each row once.

        Raises:
          tf.errors.OpError: as `tfdist.ops.all_reduce`.
        """
        gradients = self._tape.gradient(target, sources, *arguments, **options)
        # Slices and None are leaves here.
        reduced = self._reduction(tf.nest.flatten(gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(gradients, reduced)
