"""Keys of collectives: every rank gives the same key to the same collective.

TensorFlow starts independent ops in a different order on every rank, traces functions again at
different times, and numbers its graphs by the graphs built before. But all ranks run the same
program: they call the same functions in the same order, and the collectives within a function have
the same order. So the key of a collective in a graph is the function's name without TensorFlow's
number, and the collective's position in the function. All eager collectives of the program share
one key. The communicator counts the executions of each key.

A rank may belong to several communicators, and its peers in one need not belong to the others. So
positions in a graph are counted per communicator.
"""

import collections
import contextlib
import hashlib
import re
import threading
from collections.abc import Hashable, Iterator

import tensorflow as tf

_EAGER = "eager"
_thread = threading.local()
_lock = threading.Lock()


def next_key(among: Hashable) -> int:
    """Returns the 63-bit key of the collective about to be added to the graph, or run eagerly.

    Args:
      among: identifies the ranks that take part, such as the communicator's handle; it is not part
        of the key.
    """
    if tf.executing_eagerly():
        return _hash(getattr(_thread, "scope", _EAGER))
    graph = tf.compat.v1.get_default_graph()
    # Branches and loop bodies are graphs of their own, with numbers in their names: positions are
    # counted in the function around them.
    while getattr(graph, "is_control_flow_graph", False):
        graph = graph.outer_graph
    with _lock:
        if not hasattr(graph, "_tfdist_collectives"):
            graph._tfdist_collectives = collections.Counter()
        position = graph._tfdist_collectives[among]
        graph._tfdist_collectives[among] += 1
    name = re.sub(r"(_\d+)+$", "", getattr(graph, "name", "graph"))
    return _hash(f"{name}/{position}")


@contextlib.contextmanager
def eager_scope(name: str) -> Iterator[None]:
    """Within it this thread's eager collectives have a key of their own, by `name`.

    For a thread beside the program's: each rank mixes the eager collectives of both in another
    order. In the scope of one name they must have the same order on all ranks.
    """
    _thread.scope = f"{_EAGER}/{name}"
    try:
        yield
    finally:
        del _thread.scope


def named_key(name: str) -> int:
    """Returns the 63-bit key of an eager collective that has executions of its own.

    Args:
      name: the same on all ranks, and of no other collective.
    """
    return _hash(f"{_EAGER}/{name}")


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
