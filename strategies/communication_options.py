"""What `tf.distribute`'s communication options say, and how gradients are compressed."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.distribute import collective_util
from tensorflow.python.distribute.collective_util import CommunicationImplementation
from tensorflow.python.distribute.values import DistributedVariable

from tfdist.compression import Compression, NoCompression, method_of
from tfdist.ps.config import CLIPS


class CommunicationOptions(collective_util.Options):
    """Options of collectives. A drop-in for `tf.distribute.experimental.CommunicationOptions`.

    Args:
      bytes_per_pack: about how many bytes of gradients travel together; 0 leaves it to tfdist.
      timeout_seconds: seconds after which a collective fails; `None` means 600, 0 means never.
      implementation: a `tf.distribute.experimental.CommunicationImplementation` or its name. "AUTO"
        and "RING" mean tfdist's collectives, "NCCL" TensorFlow's own.
      compression: how gradients travel: "fp16", "bf16", "topk", "powersgd", or a method of
        `tfdist.compression`. `None` means as they are; where options are given to a single call it
        means what the strategy's say, and "none" means as they are.
      clip: what an optimizer of Keras 3 with `clipnorm`, `global_clipnorm` or `clipvalue` clips:
        "sum", the gradients' sum over all replicas, as one process with the whole batch does; or
        "replica", each replica's gradients before they are summed, as Keras does by itself. Counts
        in the strategy's options only.

    Raises:
      ValueError: an argument has an invalid value, or NCCL is to compress.

    Example:

    ```python
    options = tfdist.CommunicationOptions(compression="bf16")
    strategy = tfdist.MultiWorkerMirroredStrategy(communication_options=options)
    ```
    """

    def __init__(
        self,
        bytes_per_pack: int = 0,
        timeout_seconds: float | None = None,
        implementation: CommunicationImplementation | str = CommunicationImplementation.AUTO,
        compression: str | Compression | None = None,
        clip: str = "sum",
    ) -> None:
        super().__init__(bytes_per_pack, timeout_seconds, implementation)
        self.clip = check_clip("CommunicationOptions", clip)
        self.compression = method_of(compression)
        self._refuse_compressed_nccl()

    @classmethod
    def of(cls, options: collective_util.Options | None) -> CommunicationOptions:
        """Makes options of TensorFlow's own class, or of `None`, into ours."""
        return cls().merge(options)

    def merge(self, options: collective_util.Options | None) -> CommunicationOptions:
        """Returns these options, with what `options` say where they do not have the default."""
        merged = super().merge(options)
        if getattr(options, "compression", None) is not None:
            merged.compression = options.compression
        merged.clip = getattr(options, "clip", merged.clip)
        merged._refuse_compressed_nccl()
        return merged

    def _refuse_compressed_nccl(self) -> None:
        compresses = not isinstance(self.compression, NoCompression | None)
        if self.implementation == CommunicationImplementation.NCCL and compresses:
            raise ValueError(
                "CommunicationOptions: expected implementation AUTO or RING with a compression, "
                f"received NCCL and {self.compression}: TensorFlow's own collectives compress "
                "nothing"
            )

    def __str__(self) -> str:
        return f"{super().__str__()[:-1]}, compression={self.compression})"


def check_clip(owner: str, clip: str) -> str:
    """Returns `clip`, which says what optimizers clip: "sum" or "replica".

    Raises:
      ValueError: it is neither; names the `owner` of the argument.
    """
    if clip not in CLIPS:
        raise ValueError(f"{owner}: expected clip to be 'sum' or 'replica', received {clip!r}")
    return clip


def is_variable(destination: object) -> bool:
    """Whether what a value is reduced to is a variable, so that the value is its gradient."""
    return isinstance(destination, tf.Variable | DistributedVariable)


def for_gradients(
    options: collective_util.Options | None, destinations: Sequence
) -> CommunicationOptions:
    """The options of one reduction, which the strategy's compression is not meant for.

    It is meant for gradients: what is reduced to variables, in one batch. Metrics, losses and
    counts must arrive as they are.

    Args:
      options: of the call. They may ask for a compression themselves.
      destinations: what the values are reduced to.
    """
    options = CommunicationOptions.of(options)
    if options.compression is None and not any(is_variable(d) for d in destinations):
        options.compression = NoCompression()
    return options
