"""The JSON of large answers: the same text, made piece by piece."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest

from tfdist.serving.model_server.json_values import encoded, json_of


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"predictions": [[0.1, float("nan")]] * 20_000},
        {"outputs": {"a": list(range(50_000)), "b": "text", "c": [[], [1]]}},
        {"predictions": [{"a": i, "b": [i] * 3} for i in range(9_000)]},
        [[1.5] * 40_000, [2] * 40_000],
        [[[], []], [[1], [2]]],
    ],
)
def test_a_large_answer_is_the_same_text(value):
    assert encoded(value) == json.dumps(value).encode()


def test_a_large_output_needs_no_text_of_all_its_numbers():
    values = np.full((3, 100_000), 0.1, np.float32)
    tracemalloc.start()
    try:
        found = json_of("x", values)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == [[0.1] * 100_000] * 3
    assert peak < 80 * values.size  # 128 bytes a number for the texts alone
