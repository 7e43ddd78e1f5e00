"""docs/reference/algorithms.md: its example runs, and counts what its tables say."""

import re
from pathlib import Path

import tensorflow as tf

from support.processes.ranks import on_ranks
from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.job import process

PAGE = Path(__file__).parents[3] / "docs/reference/algorithms.md"


@on_ranks(4)
def test_the_example_counts_what_the_page_says(ctx):
    page = PAGE.read_text()
    example = re.search(r"```python\n(.*?)```", page, re.DOTALL).group(1)
    names = {}
    exec(example, names)
    communicator = process.current.join(Cluster.from_environment()).communicator
    sent = names["cost"](communicator)
    assert f"that is {sent:,} bytes" in page
    assert names["cost"](communicator, megabytes=1) == 6 * 262_144

    # Small ones go by recursive doubling: twice the buffer in two chunks.
    before = communicator.stats()
    ops.all_reduce(tf.ones([256]), communicator)
    after = communicator.stats()
    assert after.bytes_sent - before.bytes_sent == 2 * 1024
    assert after.chunks_sent - before.chunks_sent == 2
    assert after.bytes_sent_to_other_hosts == 0
