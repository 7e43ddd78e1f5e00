"""The counts and times of requests, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_LATEST
# Seconds: from an embedding's lookup to a large model on a processor.
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Meters:
    """Counts requests; may be called by several threads."""

    def __init__(self) -> None:
        # Of its own: the default one also has the metrics of other code in the process.
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            "tfdist_serving_requests",
            "Requests by their result, a code of gRPC.",
            ["model", "method", "code"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "tfdist_serving_seconds",
            "Time in which a request is answered, with its wait for a batch.",
            ["model", "method"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._batch_rows = Histogram(
            "tfdist_serving_batch_rows",
            "Rows of a call that may answer several requests.",
            ["model"],
            buckets=_ROWS,
            registry=self._registry,
        )

    def note_request(self, model: str, method: str, code: str, seconds: float) -> None:
        """Counts a request.

        Args:
          model: the name; empty if there is no such model.
          method: such as "predict".
          code: gRPC's name of the result, such as "OK".
          seconds: from the request to the answer.
        """
        self._requests.labels(model, method, code).inc()
        self._seconds.labels(model, method).observe(seconds)

    def note_batch(self, model: str, rows: int) -> None:
        """Counts a call for several requests."""
        self._batch_rows.labels(model).observe(rows)

    def follow(self, versions: Callable[[], Iterable[tuple[str, int]]]) -> None:
        """Shows the versions in memory.

        Args:
          versions: returns the name of each model with each of its available versions.
        """
        self._registry.register(_Versions(versions))

    def text(self) -> bytes:
        """Returns all metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class _Versions(Collector):
    def __init__(self, versions: Callable[[], Iterable[tuple[str, int]]]) -> None:
        self._versions = versions

    def collect(self) -> Iterator[Metric]:
        metric = GaugeMetricFamily(
            "tfdist_serving_version",
            "1 for each version of a model that answers requests.",
            labels=["model", "version"],
        )
        for model, version in self._versions():
            metric.add_metric([model, str(version)], 1.0)
        yield metric
