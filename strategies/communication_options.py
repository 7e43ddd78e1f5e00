"""Communication options of `tf.distribute`, extended by compression and clipping."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.compression import Compression, NoCompression, method_of
from tfdist.internals.tensorflow import (
    CommunicationImplementation,
    DistributedVariable,
    collective_util,
)
from tfdist.ops.collectives.fused import NO_COMPRESSION, check_bytes_per_pack
from tfdist.ops.collectives.tuned_buckets import AUTO
from tfdist.ps.config import CLIPS


class CommunicationOptions(collective_util.Options):
    """Options of collectives. A drop-in for `tf.distribute.experimental.CommunicationOptions`.

    Args:
      bytes_per_pack: approximate bytes of gradients in a bucket; 0 means tfdist's default. "auto"
        tries some sizes during the first steps and keeps the fastest, the same on all workers;
        the sums of gradients do not depend on the size.
      timeout_seconds: seconds after which a collective fails; `None` means 600, 0 means never.
      implementation: a `tf.distribute.experimental.CommunicationImplementation` or its name. "AUTO"
        and "RING" mean tfdist's collectives, "NCCL" TensorFlow's own.
      compression: how gradients are compressed: "fp16", "bf16", "topk", "onebit", "powersgd", or a
        method of `tfdist.compression`. `None` means no compression; in the options of a single call
        `None` means the strategy's compression, and "none" means no compression.
      clip: the gradients that an optimizer of Keras 3 with `clipnorm`, `global_clipnorm` or
        `clipvalue` clips: "sum", the sum over all replicas, as one process with the whole batch
        does; or "replica", each replica's gradients before they are summed, as Keras does by
        itself. Only the strategy's options use it.

    Raises:
      ValueError: an argument has an invalid value; or NCCL is combined with a compression or
        "auto", or a compression with "auto".

    Example:

    ```python
    options = tfdist.CommunicationOptions(compression="bf16")
    strategy = tfdist.MultiWorkerMirroredStrategy(communication_options=options)
    ```
    """

    def __init__(
        self,
        bytes_per_pack: int | str = 0,
        timeout_seconds: float | None = None,
        implementation: CommunicationImplementation | str = CommunicationImplementation.AUTO,
        compression: str | Compression | None = None,
        clip: str = "sum",
    ) -> None:
        check_bytes_per_pack("CommunicationOptions", bytes_per_pack, minimum=0)
        super().__init__(0, timeout_seconds, implementation)
        self.bytes_per_pack = bytes_per_pack
        self.clip = check_clip("CommunicationOptions", clip)
        self.compression = method_of(compression)
        self._refuse_combinations()

    @classmethod
    def of(cls, options: collective_util.Options | None) -> CommunicationOptions:
        """Converts options of TensorFlow's own class, or `None`, to this class."""
        return cls().merge(options)

    def merge(self, options: collective_util.Options | None) -> CommunicationOptions:
        """Returns these options, overridden by values of `options` that are not the default."""
        merged = super().merge(options)
        compression = getattr(options, "compression", None)
        if compression is not None:
            merged.compression = compression
        merged.clip = getattr(options, "clip", merged.clip)
        merged._refuse_combinations()
        return merged

    def _refuse_combinations(self) -> None:
        compresses = not isinstance(self.compression, NoCompression | None)
        is_tuned = self.bytes_per_pack == AUTO
        if is_tuned and compresses:
            raise ValueError(f"CommunicationOptions: {NO_COMPRESSION}")
        if self.implementation == CommunicationImplementation.NCCL and is_tuned:
            raise ValueError(
                "CommunicationOptions: expected implementation AUTO or RING with bytes_per_pack "
                "'auto', received NCCL: TensorFlow's own collectives have fixed buckets"
            )
        if self.implementation == CommunicationImplementation.NCCL and compresses:
            raise ValueError(
                "CommunicationOptions: expected implementation AUTO or RING with a compression, "
                f"received NCCL and {self.compression}: TensorFlow's own collectives compress "
                "nothing"
            )

    def __str__(self) -> str:
        return f"{super().__str__()[:-1]}, compression={self.compression})"


def check_clip(owner: str, clip: str) -> str:
    """Returns `clip` after checking that it is "sum" or "replica".

    Raises:
      ValueError: it is neither; names the `owner` of the argument.
    """
    if clip not in CLIPS:
        raise ValueError(f"{owner}: expected clip to be 'sum' or 'replica', received {clip!r}")
    return clip


def is_variable(destination: object) -> bool:
    """Whether the destination of a reduction is a variable: then the value is its gradient."""
    return isinstance(destination, tf.Variable | DistributedVariable)


def for_gradients(
    options: collective_util.Options | None, destinations: Sequence
) -> CommunicationOptions:
    """Returns the options of one reduction, without the strategy's compression unless it is needed.

    The strategy's compression applies to gradients: values that are reduced to variables, in one
    batch. Metrics, losses and counts must stay exact.

    Args:
      options: of the call; they may have a compression of their own.
      destinations: the destinations of the values.
    """
    options = CommunicationOptions.of(options)
    if options.compression is None and not any(is_variable(d) for d in destinations):
        options.compression = NoCompression()
    return options
