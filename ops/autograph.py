"""Excludes tfdist's own functions from AutoGraph, as TensorFlow excludes its own.

They are written for graphs, so converting them gains nothing; it took the first `tf.function` that
calls a collective half a second of processor time. TensorFlow has no public way to exclude a
package: the rules are `tensorflow.python.autograph.core.config.CONVERSION_RULES`, read at each
call. A user's function that tfdist calls, such as the argument of `strategy.run`, is converted as
before.
"""

from tfdist.internals.tensorflow import config

_RULE = config.DoNotConvert("tfdist")


def exclude_tfdist() -> None:
    """Adds the rule, once."""
    if _RULE not in config.CONVERSION_RULES:
        config.CONVERSION_RULES = (_RULE, *config.CONVERSION_RULES)
