"""The line of an exception's text that tells the reason."""

from __future__ import annotations

import pytest

from tfdist import reasons

GRAPH = """Graph execution error:

Detected at node Cast defined at (most recent call last):
  File "train.py", line 11, in <module>

Cast string to float is not supported
\t [[{{node Cast}}]] [Op:__inference_multi_step_on_iterator_544]"""
LAYER = """Exception encountered when calling Embedding.call().

\x1b[1man embedding's ids: expected integers, received float32\x1b[0m

Arguments received by Embedding.call():
  • inputs=tf.Tensor(shape=(4, 1), dtype=float32)"""
BUILD = f"""Unable to automatically build the model. Please build it yourself.
Exception encountered:
'{LAYER}'
Sequential must have its variables before its first step"""
STAGED = """in user code:

    File "train.py", line 12, in step  *
        loss: float = model(x)
    File "layers.py", line 5, in call

    StagingError: Exception encountered when calling layer 'm' (type M).
    
    in user code:
    
        File "layers.py", line 18, in call  *
            raise ValueError("a bad row")
    
        ValueError: a bad row
    
    
    Call arguments received by layer 'm' (type M):
      • x=tf.Tensor(shape=(None, 1), dtype=float32)
"""  # noqa: W293
STAGED_LAYER = """in user code:

    File "train.py", line 12, in step  *
        return model(x)

    tfdist.errors.StateError: Exception encountered when calling L.call().
    
    \x1b[1ma bad row\x1b[0m
    
    Arguments received by L.call():
"""  # noqa: W293


class IdTypeError(TypeError):
    """As tfdist's."""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("a bad row\nof the second file"), "ValueError: a bad row"),
        (ValueError(), "ValueError"),
        (ValueError("\n\n"), "ValueError"),
        (ValueError(GRAPH), "ValueError: Cast string to float is not supported"),
        (
            ValueError(f"{GRAPH.splitlines()[0]}\n\n<stack traces unavailable>\nA zero"),
            "ValueError: A zero",  # of a SavedModel
        ),
        (ValueError(GRAPH.splitlines()[0]), "ValueError: Graph execution error:"),
        (
            IdTypeError(LAYER),
            "IdTypeError: an embedding's ids: expected integers, received float32",
        ),
        (
            RuntimeError(BUILD),
            "RuntimeError: an embedding's ids: expected integers, received float32",
        ),
        (
            RuntimeError(BUILD.replace(LAYER, "a bad row").rpartition("\n")[0]),
            "RuntimeError: a bad row",
        ),
        (TypeError(STAGED), "ValueError: a bad row"),
        (TypeError(STAGED_LAYER), "StateError: a bad row"),
        (TypeError("in user code:"), "TypeError: in user code:"),
        (TypeError('in user code:\n\n    File "a", line 1\n'), "TypeError: in user code:"),
        (TypeError(LAYER.splitlines()[0]), f"TypeError: {LAYER.splitlines()[0]}"),
        (
            ValueError("{{function_node __wrapped__MatMul}} In[0]: [1,2], In[1]: [1,2]"),
            "ValueError: In[0]: [1,2], In[1]: [1,2]",
        ),
    ],
)
def test_the_informative_line(error, reason):
    assert reasons.one_line(error) == reason


def test_a_reason_has_an_end():
    assert len(reasons.one_line(ValueError("x" * 5000))) == len("ValueError: ") + 1000
