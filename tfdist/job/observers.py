"""The observers of a task: flight recorder, timeline, metrics, and the report of stragglers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tfdist import _providers
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.observe import recorder, stragglers, waits
from tfdist.observe.timeline import recording

if TYPE_CHECKING:
    from tfdist.job.peer_group import PeerGroup
    from tfdist.observe.recorder import Recorder
    from tfdist.observe.timeline.recording import TaskTimeline


class MetricsExporter(Protocol):
    """The server of this task's metrics; `tfdist.observe.metrics` has it."""

    def end(self) -> None:
        """Keeps the last state of the task, which is about to leave its job."""

    def close(self) -> None:
        """Stops serving."""


class Observers:
    """The observers of this process's task. Each starts once, where a setting or a peer needs it.

    Attributes:
      counts_steps: whether strategies count training steps.
    """

    def __init__(self) -> None:
        self.counts_steps = False
        self._recorder: Recorder | None = None
        self._timeline: TaskTimeline | None = None
        self._exporter: MetricsExporter | None = None
        self._has_served = False
        self._stragglers: stragglers.StragglerReport | None = None
        self._followed: list[waits.PeerWaits] = []  # of which this task answers to the leader

    def record(self, cluster: Cluster, settings: Settings) -> bool:
        """Starts the flight recorder and the timeline.

        Args:
          cluster: the job; a local one has no recorder.
          settings: where they write.

        Returns:
          Whether one has started that the end of the script closes.

        Raises:
          ClusterConfigError: a setting has an unusable value.
        """
        writes = False
        if self._timeline is None and (not cluster.is_local or settings.timeline is not None):
            self._timeline = recording.start(cluster, settings)
            writes = settings.timeline is not None
        if cluster.is_local or self._recorder is not None:
            return writes
        self._recorder = recorder.start(cluster, settings, self._timeline)
        return writes or self._recorder is not None

    def follow_failures(self) -> None:
        """Lets the recorder write when a collective fails; before the first communicator."""
        if self._recorder is not None:
            self._recorder.follow_failures()

    def serve_metrics(self, cluster: Cluster, settings: Settings) -> None:
        """Serves the metrics, if `TFDIST_METRICS_PORT` is set; see `Process.serve_metrics`."""
        if settings.metrics_port is None or self._has_served:
            return
        self._exporter = _providers.provider("serve_metrics")(cluster, settings)
        # A port that the launcher has chosen may be taken: once is enough to learn that.
        self._has_served = True
        self.counts_steps = self.counts_steps or self.serves_metrics

    @property
    def serves_metrics(self) -> bool:
        """Whether this process serves the metrics of its task."""
        return self._exporter is not None

    def report_late_peers(self, cluster: Cluster, settings: Settings, group: PeerGroup) -> None:
        """Reports, from now on, the tasks of a group that are late; see `observe.stragglers`.

        Only its leader does, which asks the others.
        """
        source = group.communicator
        self._followed.append(source)
        waits.follow(source)
        client = waits.WaitsClient(cluster, settings.secret, settings.tls)

        def ask() -> dict[str, waits.TaskWaits] | None:
            addresses = group.addresses
            found = client.ask(addresses) if group.is_leader and len(addresses) > 1 else None
            if found is None:
                return None
            return dict(zip(map(cluster.name_of_address, addresses), found, strict=True))

        self._report(cluster, settings, stragglers.LateTasks(ask))

    def report_waits_for_servers(
        self, cluster: Cluster, settings: Settings, source: waits.PeerWaits
    ) -> None:
        """Lets the chief report, from now on, how long it waits for the parameter servers."""
        if cluster.rank == 0:
            self._report(cluster, settings, stragglers.ServerWaits(source))

    def _report(self, cluster: Cluster, settings: Settings, source: stragglers.Source) -> None:
        if not settings.straggler_period:
            return
        if self._stragglers is None:
            self._stragglers = stragglers.StragglerReport(
                cluster.task_name, settings.straggler_period, self._counted_steps
            )
        self._stragglers.follow(source)

    def _counted_steps(self) -> int | None:
        if not self.counts_steps:
            return None
        from tfdist.ops.local.step_counter import counted  # imports TensorFlow

        # A loop without `strategy.run` has none.
        return counted()[0] or None

    def report_stragglers(self) -> None:
        """Logs which tasks were late since the last report, if some were for long."""
        if self._stragglers is not None:
            self._stragglers.report()

    def note_failure(self, error: BaseException) -> None:
        """Records an exception that may end the script."""
        if self._recorder is not None:
            self._recorder.note_failure(error)

    def note_exception(self, error: BaseException) -> None:
        """Records an exception that ends the script."""
        if self._recorder is not None:
            self._recorder.note_exception(error)

    def note_exit(self, code: int, error: BaseException | None) -> None:
        """Records an exit code that is a failure, and the exception that the script handles."""
        if self._recorder is not None:
            self._recorder.note_exit(code, error)

    def note_leaving(self, has_ended: bool) -> None:
        """Records that this task leaves its job, and its state; the report of stragglers ends.

        Args:
          has_ended: the script has not failed.
        """
        if self._exporter is not None:
            self._exporter.end()
        if self._recorder is not None and has_ended:
            self._recorder.note_end()
        report, self._stragglers = self._stragglers, None
        if report is not None:
            report.close()

    def close_records(self) -> None:
        """Closes the recorder and the timeline, at the end of the program."""
        # The recorder first: its thread may start a timeline.
        if self._recorder is not None:
            self._recorder.close()
        if self._timeline is not None:
            self._timeline.close()

    def close(self) -> None:
        """Closes all of them; they may start again."""
        self.close_records()
        self._recorder = self._timeline = None
        for source in self._followed:
            waits.forget(source)
        self._followed.clear()
        if self._exporter is not None:
            self._exporter.close()
            self._exporter = None
        self._has_served = False
        self.counts_steps = False
