"""Names collectives so that every rank gives the same one to the same collective.

TensorFlow starts independent ops in a different order on every rank, traces functions again at
different times, and numbers its graphs by whatever was built before. What the ranks do share is the
program: which functions they call in which order, and the order of the collectives within a
function. So a collective in a graph is known by the function's name without TensorFlow's number,
and its position there; an eager one by its position in the program. The communicator counts the
executions of each.

A rank may belong to several communicators, and its peers in one need not share the others. So the
positions in a graph are counted for each communicator apart.
"""

import collections
import hashlib
import re
import threading
from collections.abc import Hashable

import tensorflow as tf

_EAGER = "eager"
_lock = threading.Lock()


def next_key(among: Hashable) -> int:
    """Returns the 63-bit key of the collective about to join the current graph, or run eagerly.

    Args:
      among: the handle of the communicator, or whatever else stands for the ranks that take part;
        it does not enter the key.
    """
    if tf.executing_eagerly():
        return _hash(_EAGER)
    graph = tf.compat.v1.get_default_graph()
    # Branches and loop bodies are graphs of their own, with numbers in their names: count in the
    # function around them.
    while getattr(graph, "is_control_flow_graph", False):
        graph = graph.outer_graph
    with _lock:
        if not hasattr(graph, "_tfdist_collectives"):
            graph._tfdist_collectives = collections.Counter()
        position = graph._tfdist_collectives[among]
        graph._tfdist_collectives[among] += 1
    name = re.sub(r"(_\d+)+$", "", getattr(graph, "name", "graph"))
    return _hash(f"{name}/{position}")


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
