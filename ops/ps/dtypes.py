"""Numbers of dtypes, as the C functions of the parameter servers and their clients take them."""

import tensorflow as tf

DTYPES = {  # numbered as in core/math/dtype.h
    tf.float16: 1,
    tf.bfloat16: 2,
    tf.float32: 3,
    tf.float64: 4,
    tf.int32: 5,
    tf.int64: 6,
}
