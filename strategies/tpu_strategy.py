"""TensorFlow's strategy for TPUs under tfdist's name."""

from __future__ import annotations

import tensorflow as tf


class TPUStrategy(tf.distribute.TPUStrategy):
    """TensorFlow's own `tf.distribute.TPUStrategy`, with nothing added.

    It was never run here: tfdist is developed and tested without a TPU, and none of its tests,
    repairs of Keras or collectives are known to work with one. Arguments, behaviour and errors are
    TensorFlow's; see its documentation.

    Example:

    ```python
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver("my-tpu")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    strategy = tfdist.TPUStrategy(resolver)
    ```
    """
