"""Keeps AutoGraph away from tfdist's own functions, as TensorFlow keeps it away from its own.

They are written for graphs already. Converting them took the first `tf.function` that calls a
collective half a second of processor time. There is no public way to say this of a package: the
rules are `tensorflow.python.autograph.core.config.CONVERSION_RULES`, read at each call. A user's
function that tfdist calls, such as the one given to `strategy.run`, is converted as before.
"""

from tensorflow.python.autograph.core import config

_RULE = config.DoNotConvert("tfdist")


def leave_tfdist_alone() -> None:
    """Adds the rule, once."""
    if _RULE not in config.CONVERSION_RULES:
        config.CONVERSION_RULES = (_RULE, *config.CONVERSION_RULES)
