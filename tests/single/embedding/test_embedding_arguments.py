"""Arguments of the layer and its table: checks, and `get_config`."""

from __future__ import annotations

import keras
import pytest

import tfdist
from tfdist import embedding, layers
from tfdist.embedding import layer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output_dim": 0}, "output_dim to be a whole number from 1 on, received 0"),
        ({"input_dim": -2}, "input_dim to be a whole number from 1 on, or None, received -2"),
        ({"combiner": "max"}, "combiner to be one of"),
        ({"optimizer": "adamaxx"}, "expected one of sgd"),
        ({"initializer": "glorot_uniform"}, "scales by the number of rows"),
        ({"min_count": 0}, "min_count to be"),
        ({"probability": 0.0}, "probability to be a number above 0"),
        ({"max_rows": 0.5}, "max_rows to be"),
        ({"eviction": "fifo"}, "eviction to be 'lru' or 'lfu', received 'fifo'"),
        ({"ttl_seconds": -1}, "ttl_seconds to be a positive number"),
        ({"min_norm": 0}, "min_norm to be a positive number"),
        ({"learning_rate": "fast"}, "learning_rate: expected a number from 0 on"),
    ],
)
def test_arguments_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        layers.Embedding(**arguments)


def test_a_table_tells_its_arguments():
    arguments = {
        "name": "users",
        "output_dim": 3,
        "input_dim": 1000,
        "optimizer": embedding.Adam(beta_1=0.5),
        "initializer": keras.initializers.Constant(0.25),
        "learning_rate": 0.125,
        "min_count": 2,
        "probability": 0.5,
        "max_rows": 70,
        "eviction": "lfu",
        "ttl_seconds": 60.0,
        "min_norm": 0.01,
        "wire_dtype": "bfloat16",
        "cache_rows": 9,
        "cache_steps": 4,
        "save_rows": False,
        "reset_slots": True,
    }
    table = tfdist.EmbeddingTable(**arguments)
    told = table.get_config()
    assert told == {**arguments, "optimizer": table.optimizer.get_config()}
    again = tfdist.EmbeddingTable.from_config(told)
    assert again.get_config() == told
    assert bytes(again.config()) == bytes(table.config())
    assert bytes(table.config()) != bytes(tfdist.EmbeddingTable("users", 3).config())


def test_descriptions_of_layers_need_no_docstrings():
    undocumented = type("Undocumented", (), {})  # as all classes are with `python -OO`
    assert layer._arguments_of(undocumented) == ""
    assert layer._arguments_of(layer.RemoteEmbedding).startswith("Args:")
