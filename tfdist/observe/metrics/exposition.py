"""This task's metrics in Prometheus's text format, by `prometheus_client`."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.observe.metrics import collector

CONTENT_TYPE = CONTENT_TYPE_LATEST


class TaskCollector(Collector):
    """Collects this task's metrics; each sample has the label `task`.

    Args:
      cluster: the job.
      settings: of this process.
      server: of a `ps` task.
    """

    def __init__(
        self, cluster: Cluster, settings: Settings, server: collector.Server | None
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics."""
        task = self._cluster.task_name
        for family in collector.describe(self._cluster, self._settings, self._server):
            kind = CounterMetricFamily if family.is_counter else GaugeMetricFamily
            metric = kind(family.name, family.help, labels=["task", *family.labels])
            for labels, number in family.samples:
                metric.add_metric([task, *labels], number)
            yield metric


class Exposition:
    """Writes the metrics of this task and of its process.

    Args:
      task: the task's.
    """

    def __init__(self, task: Collector) -> None:
        # Of its own: the default one also has the metrics of the user's script.
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(task)

    def text(self) -> bytes:
        """Returns all metrics, read now."""
        return generate_latest(self._registry)
