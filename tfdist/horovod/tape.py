"""A gradient tape that reduces gradients over all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist._types import KerasVariable, Nested
from tfdist.compression import Compression, Compressor, OneBit, PowerSGD, TopK, method_of
from tfdist.horovod.reduction import Reduction


class DistributedGradientTape:
    """Wraps a `tf.GradientTape`: `gradient` returns the mean or sum over all ranks.

    All other methods are the tape's own; `jacobian` and `batch_jacobian` are of this rank alone.
    With a `tfdist.DistributedOptimizer` use an ordinary tape.

    Args:
      tape: the tape, before or after it has recorded.
      gradient_reduction: "mean" or "sum". The mean fits losses that are means over a rank's batch.
      compression: how gradients travel: "fp16", "bf16" or `None`, which means uncompressed. Other
        methods keep state for the next step, and a tape lives for one step: give all tapes the same
        `tfdist.compression.compressor("topk")`.
      scale_local_gradients: divide gradients of local variables by the number of ranks, as for
        averaged gradients.

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
        api_name = "tfdist.DistributedGradientTape"
        if not isinstance(compression, Compressor):
            compression = method_of(compression)
            if isinstance(compression, TopK | OneBit | PowerSGD):
                raise ValueError(
                    f"{api_name}: expected something that outlives the tape, such as "
                    f"tfdist.compression.compressor({compression}), received {compression}, which "
                    "keeps what it has not sent for the next step"
                )
        if isinstance(tape, DistributedGradientTape):
            raise ValueError(f"{api_name}: this tape is one already, and would reduce twice")
        if not isinstance(tape, tf.GradientTape):
            raise TypeError(f"{api_name}: expected a tf.GradientTape, received {tape!r}")
        self._tape = tape
        self._reduction = Reduction(
            api_name, gradient_reduction, compression, scale_local_gradients
        )

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._tape.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._tape, name)

    def register_local_var(self, variable: KerasVariable) -> None:
        """Makes a variable local to each rank: its gradients are not reduced.

        Args:
          variable: of TensorFlow or Keras, or a tensor that is a source of `gradient`.

        Raises:
          TypeError: it is neither.
        """
        self._reduction.local.register(variable)

    def register_local_source(self, source: KerasVariable) -> None:
        """Same as `register_local_var`: the name of the method of Horovod's tape."""
        self.register_local_var(source)

    def gradient(self, target: Nested, sources: Nested, *arguments: Any, **options: Any) -> Nested:
        """Computes gradients as `tf.GradientTape.gradient` does, and reduces them over all ranks.

        Args:
          target: as for `tf.GradientTape.gradient`.
          sources: likewise; the same on every rank.
          *arguments: further ones of `tf.GradientTape.gradient`.
          **options: likewise.

        Returns:
          The structure of `sources`, with the same values on every rank except for local variables.
          The gradient of an unconnected source is None. Gradients of embeddings are
          `tf.IndexedSlices`, each row once.

        Raises:
          tf.errors.OpError: as `tfdist.ops.all_reduce`.
        """
        gradients = self._tape.gradient(target, sources, *arguments, **options)
        # Slices and None are leaves here.
        reduced = self._reduction(tf.nest.flatten(gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(gradients, reduced)
