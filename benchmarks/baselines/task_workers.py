"""Processes of benchmarks/tasks.py: the master, simulated workers, and a worker that trains."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.control.client import ControlClient
from tfdist.control.server import ControlServer
from tfdist.data.queue import messages
from tfdist.data.queue.client import OwnedTask, TaskClient
from tfdist.data.queue.description import Description, Spec
from tfdist.data.queue.master import TaskMaster

ROOT = Path(__file__).parents[2]
RECORDS, BATCH = 12_800, 128


def cluster_of(port: int, workers: int, rank: int) -> Cluster:
    """The cluster of simulated workers; only the first one's address is used."""
    addresses = tuple(f"127.0.0.1:{port + i}" for i in range(workers))
    return Cluster(workers=addresses, task_index=rank)


class Master:
    """The master of a job, behind its control server.

    Args:
      port: of the server.
      workers: how many.
      secret: of the job, or `None`.
    """

    def __init__(self, port: int, workers: int, secret: bytes | None) -> None:
        cluster = cluster_of(port, workers, 0)
        self._master = TaskMaster(cluster)
        self._server = ControlServer(cluster, secret, self._master.handlers)

    def committed(self, queue: str) -> int:
        """Committed records of a queue."""
        answer = self._master.handlers[messages.TASK_STATUS](messages.TaskStatusRequest(0.0), None)
        return {one["name"]: one["records"] for one in answer["queues"]}[queue]


class Workers:
    """Simulated workers: each takes a task, commits it at once, and takes the next one.

    Args:
      port: the master's.
      workers: of the job.
      ranks: the ranks in this process, a thread each.
      secret: of the job, or `None`.
    """

    def __init__(self, port: int, workers: int, ranks: list[int], secret: bytes | None) -> None:
        settings = Settings(secret=secret)
        self._clients = []
        for rank in ranks:
            cluster = cluster_of(port, workers, rank)
            control = ControlClient(
                cluster, settings.secret, cluster.training_addresses[0], "the master"
            )

            def call(method, request, wait, control=control):
                return control.call(method, request, wait, patient=True)

            closed = threading.Event()
            self._clients.append(
                TaskClient(cluster, f"process {rank}", call, "the master", 30.0, closed)
            )

    def run(self, queue: str, tasks: int, rate: float) -> tuple[list[float], float]:
        """Takes tasks until none is left.

        Args:
          queue: a new one.
          tasks: of the queue, of 1,000 records each.
          rate: requests per second of each worker, 0: as many as it can.

        Returns:
          Seconds of each request, and of all.
        """
        spec = Spec("ranges", 1000 * tasks, 1000, "", (), 1, True, 1, 60.0)
        for client in self._clients:
            client.open(queue, spec, lambda: Description(spec))
        seconds: list[list[float]] = [[] for _ in self._clients]

        def work(client: TaskClient, times: list[float]) -> None:
            due = time.perf_counter()
            held: dict[int, int] = {}
            while True:
                for is_lease in (True, False):
                    due += 1 / rate if rate else 0.0
                    time.sleep(max(0.0, due - time.perf_counter()) if rate else 0.0)
                    start = time.perf_counter()
                    if is_lease:
                        found = client.lease(queue, 0, waits=False, wait=0.0)
                    else:
                        client.report(queue, held)
                    times.append(time.perf_counter() - start)
                    if is_lease:
                        if not isinstance(found, OwnedTask):
                            return
                        held = {found.lease: found.size}

        threads = [
            threading.Thread(target=work, args=pair)
            for pair in zip(self._clients, seconds, strict=True)
        ]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [one for times in seconds for one in times], time.perf_counter() - start


class Trainer:
    """Trains the model of keras_examples/fashion_mnist.py on random images.

    Args:
      tf_config: of a worker; "{}" without a cluster.
      tasks: whether the images are dealt out as tasks; else they are a plain dataset.
    """

    def __init__(self, tf_config: str, tasks: bool) -> None:
        os.environ["TF_CONFIG"] = tf_config
        sys.path.insert(0, str(ROOT / "keras_examples"))
        import keras
        import numpy as np
        import tensorflow as tf
        from fashion_mnist import build_model

        import tfdist

        random = np.random.default_rng(1)
        images = random.integers(0, 255, (RECORDS, 28, 28), dtype=np.uint8)
        labels = random.integers(0, 10, RECORDS, dtype=np.uint8)
        keras.utils.set_random_seed(1)
        self._model = build_model()
        self._model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        self._steps = 0
        self._ends: list[float] = []
        self._note = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: self._ends.append(time.perf_counter())
        )
        if tasks:
            data = tfdist.data.from_arrays((images, labels), 1000)
        else:
            data = tf.data.Dataset.from_tensor_slices((images, labels))
        self._data = data.batch(BATCH).prefetch(2)

    def epoch(self) -> tuple[float, int]:
        """Trains an epoch; returns the seconds of its steps after the first, and their number."""
        self._ends.clear()
        self._model.fit(self._data, epochs=1, verbose=0, callbacks=[self._note])
        self._steps += len(self._ends)
        return self._ends[-1] - self._ends[0], len(self._ends) - 1

    def trained(self) -> int:
        """The number of steps. (The optimizer also counts the step that finds no more data.)"""
        return self._steps
