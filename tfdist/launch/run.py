"""`tfdist run`: all tasks of a job, on this machine or on several hosts over ssh.

The launcher gives every task a free port and its `TF_CONFIG`, shows their output with a prefix, and
ends all of them when one fails, at a time limit, or on Ctrl-C. With restarts it starts failed tasks
again. It starts and ends the workers of an elastic job one by one. On other hosts an agent does so
for it; everything else is the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tfdist.config.cluster import Cluster
from tfdist.config.host_environment import passed_environment
from tfdist.config.job_file import JobFile
from tfdist.config.own_program import is_own, own_module
from tfdist.config.printing import printable
from tfdist.config.settings import Settings, environment_with_secret, environment_with_tls
from tfdist.config.tls import Tls
from tfdist.errors import ClusterConfigError
from tfdist.launch import job_registry, metrics_ports
from tfdist.launch.binding import Binding
from tfdist.launch.dashboard_process import DashboardProcess
from tfdist.launch.debug_directory import debug_directory
from tfdist.launch.elastic_workers import ElasticWorkers
from tfdist.launch.findings import Findings
from tfdist.launch.gpus import GpuShares
from tfdist.launch.hosts import discovery
from tfdist.launch.hosts.connection import AgentCommand
from tfdist.launch.hosts.cooldown import Cooldown
from tfdist.launch.hosts.host_list import Host, place
from tfdist.launch.hosts.pool import Connector, HostPool, JobCommand, Site, this_machine
from tfdist.launch.kept_output import KeptOutput
from tfdist.launch.output import OutputStream, output_streams
from tfdist.launch.policies.elastic import Backoff, ElasticPolicy, WorkerRange
from tfdist.launch.policies.fixed import FixedPolicy
from tfdist.launch.private_directory import private_directory
from tfdist.launch.running_job import RunningJob
from tfdist.launch.scale_channel import scale_listener
from tfdist.launch.supervisor import Supervisor
from tfdist.launch.task import TaskSpec

__all__ = ["LaunchOptions", "plan", "run"]


@dataclasses.dataclass(frozen=True)
class LaunchOptions:
    """The tasks to start, and their time limits.

    Attributes:
      script: the Python script that every task runs; `None` with a module.
      arguments: the script's or the module's own arguments.
      workers: number of training tasks, 1 or more. With `ps` or `evaluator` the first is the chief.
        A range makes the job elastic: its workers come and go while it runs, and none is the chief.
      ps: number of parameter servers.
      evaluator: start an evaluator too.
      data_workers: number of workers of TensorFlow's data service; if any, its dispatcher is
        started, too.
      log_dir: the directory of the tasks' logs; None keeps none.
      timeline: the file of the job's timeline; None means the file in `TFDIST_TIMELINE`, if any.
      timeout: seconds the job may take; None is no limit.
      restarts: the number of failures that lead to a restart: of all tasks, or of the failed task
        alone if the job has parameter servers or the task does not train. Not of elastic jobs.
      max_restarts: the number of restarts of single tasks of an elastic job; 10 if None.
      backoff: when they are restarted.
      final_codes: the exit codes of a worker of an elastic job after which the job has failed,
        since a restart would not help.
      cooldown: when a host on which workers of an elastic job fail is left out; None: by default.
      start_timeout: seconds after which an elastic job begins with fewer workers than it starts
        with; None means what `TFDIST_ELASTIC_START_TIMEOUT` says, if it is set.
      hosts: the hosts, with ssh; none means this machine.
      discovery_script: a program that names the hosts of an elastic job while it runs.
      ssh: the program that connects to them, with its options.
      python: the path of Python on them; None means this process's Python.
      env: further variables of this environment that tasks on other hosts get.
      binding: the CPUs that each task is bound to.
      gpus_per_worker: how many GPUs of its host each worker, the chief and the evaluator get;
        others get none. None lets each task see all of them.
      job_file: the file with the job's addresses and secret while it runs; by default a new one,
        whose path is printed if there are parameter servers, or the job is elastic.
      stop_grace: seconds from SIGTERM to SIGKILL after a failure or at the time limit.
      signal_grace: seconds from Ctrl-C or SIGTERM to SIGKILL, in which tasks end their step and
        save.
      ps_grace: seconds in which the parameter servers may end by themselves after the training
        tasks.
      module: the module that every task runs, as `python -m` does.
      metrics: whether the tasks serve their metrics: on this machine always, on others if
        `TFDIST_METRICS_PORT` asks for it.
      dashboard: serve a web page about the job, whose address is printed.
      tls: encrypt the tasks' connections, with certificates made from the secret if the environment
        names no files.
      evaluator_grace: the same for the evaluator, which may have a last checkpoint to evaluate.

    Raises:
      ValueError: there is neither a script nor a module, or both.
      ClusterConfigError: an elastic job has tasks or an option that it cannot have, or another job
        has an option of elastic ones; or the hosts have too few slots.
    """

    script: Path | None = None
    arguments: Sequence[str] = ()
    workers: int | WorkerRange = 1
    ps: int = 0
    evaluator: bool = False
    data_workers: int = 0
    log_dir: Path | None = None
    timeline: Path | None = None
    timeout: float | None = None
    restarts: int = 0
    max_restarts: int | None = None
    backoff: Backoff = Backoff()
    final_codes: Sequence[int] = ()
    cooldown: Cooldown | None = None
    start_timeout: float | None = None
    hosts: Sequence[Host] = ()
    discovery_script: Path | None = None
    ssh: Sequence[str] = ("ssh",)
    python: str | None = None
    env: Sequence[str] = ()
    binding: Binding = Binding.NONE
    gpus_per_worker: int | None = None
    job_file: Path | None = None
    stop_grace: float = 10.0
    signal_grace: float = 30.0
    ps_grace: float = 5.0
    evaluator_grace: float = 60.0
    module: str | None = None
    metrics: bool = True
    dashboard: bool = False
    tls: bool = False

    def __post_init__(self) -> None:
        if (self.script is None) == (self.module is None):
            raise ValueError(
                f"expected a script or a module, received {self.script} and {self.module}"
            )
        if self.dashboard and not self.metrics:
            raise ClusterConfigError(
                "--dashboard: expected tasks that serve metrics, received --no-metrics"
            )
        if self.hosts:
            place([role for role, _ in _roles(self)], self.hosts)
        if not isinstance(self.workers, WorkerRange):
            if self.max_restarts is not None:
                raise ClusterConfigError(
                    "--max-restarts: expected an elastic job (--workers MIN:MAX), received "
                    f"--workers {self.workers}; --restarts is for other jobs"
                )
            if self.cooldown is not None:
                raise ClusterConfigError(
                    "--blacklist-cooldown-range: expected an elastic job (--workers MIN:MAX), "
                    f"received --workers {self.workers}"
                )
            if self.start_timeout is not None:
                raise ClusterConfigError(
                    "--start-timeout: expected an elastic job (--workers MIN:MAX), received "
                    f"--workers {self.workers}"
                )
            if self.discovery_script is not None:
                raise ClusterConfigError(
                    "--host-discovery-script: expected an elastic job (--workers MIN:MAX), "
                    f"received --workers {self.workers}; --hosts is for other jobs"
                )
            return
        if self.binding is not Binding.NONE:
            raise ClusterConfigError(
                "--bind: expected none with --workers MIN:MAX, since the workers of an elastic job "
                f"come and go; received --bind {self.binding.value}"
            )
        for option, value, why in (
            ("--evaluator", self.evaluator, "has workers and parameter servers only"),
            ("--data-workers", self.data_workers, "has workers and parameter servers only"),
            ("--restarts", self.restarts, "restarts single workers, --max-restarts times"),
        ):
            if value:
                raise ClusterConfigError(
                    f"{option}: expected none with --workers MIN:MAX, since an elastic job {why}; "
                    f"received {option if value is True else f'{option} {value}'}"
                )

    @property
    def slots(self) -> int:
        """The number of training tasks that have an address."""
        workers = self.workers
        return workers.maximum if isinstance(workers, WorkerRange) else workers


def _roles(options: LaunchOptions) -> list[tuple[str, int]]:
    """Returns the role and index of each task, in the order of `plan`."""
    # Estimator and parameter-server training require a task called chief; an elastic job has none.
    is_elastic = isinstance(options.workers, WorkerRange)
    chiefs = 1 if (options.ps and not is_elastic) or options.evaluator else 0
    return [
        *(("chief", index) for index in range(chiefs)),
        *(("worker", index) for index in range(options.slots - chiefs)),
        *(("ps", index) for index in range(options.ps)),
        *(("evaluator", index) for index in range(int(options.evaluator))),
        *(("data_dispatcher", index) for index in range(1 if options.data_workers else 0)),
        *(("data_worker", index) for index in range(options.data_workers)),
    ]


def _takes_gpus(role: str) -> bool:
    return role in ("chief", "worker", "evaluator")


def plan(
    options: LaunchOptions,
    ports: Sequence[int] | None = None,
    sites: Sequence[Site] | None = None,
) -> list[TaskSpec]:
    """Returns the tasks of a job, with the TF_CONFIG of each.

    Args:
      options: the number of tasks of each kind; of an elastic job all that there may be.
      ports: one port for each training task and parameter server, and if there are data workers,
        for their dispatcher and for each of them; free ones by default.
      sites: the site of each task; this machine by default.

    Returns:
      The tasks, in the order chief, workers, parameter servers, evaluator, data tasks; the first
      is rank 0.

    Raises:
      OSError: too few ports are free, or a host is lost.
    """
    roles = _roles(options)
    if sites is None:
        sites = [this_machine()] * len(roles)
    # An evaluator has no address.
    tasks = list(zip(sites, roles, strict=True))
    listening = [site for site, (role, _) in tasks if role != "evaluator"]
    free = iter(_free_ports(listening) if ports is None else ports)
    addresses: dict[str, list[str]] = {}
    for site, (role, _) in tasks:
        if role != "evaluator":
            addresses.setdefault(role, []).append(site.host.listens_at(next(free)))
    cluster = Cluster(
        chief=tuple(addresses.get("chief", ())),
        workers=tuple(addresses.get("worker", ())),
        ps=tuple(addresses.get("ps", ())),
        data_dispatcher=tuple(addresses.get("data_dispatcher", ())),
        data_workers=tuple(addresses.get("data_worker", ())),
        task_type=roles[0][0],
        task_index=0,
    )
    graces = {"ps": options.ps_grace, "evaluator": options.evaluator_grace}
    specs = []
    for site, (role, index) in tasks:
        task = dataclasses.replace(cluster, task_type=role, task_index=index)
        specs.append(
            TaskSpec(
                name=task.task_name,
                trains=task.rank is not None,
                serves=role == "ps",
                prepares_data=task.is_data_task,
                tf_config=task.tf_config(),
                grace=graces.get(role, 0.0),
                host=site.host.name if options.hosts or options.discovery_script else "",
            )
        )
    return specs


def _free_ports(sites: Sequence[Site]) -> list[int]:
    """Returns a free port of each site, in order; sites that are the same have different ones."""
    found = {id(site): iter(site.free_ports(sites.count(site))) for site in dict.fromkeys(sites)}
    return [next(found[id(site)]) for site in sites]


def _placed(options: LaunchOptions, sites: Sequence[Site]) -> list[Site]:
    """Returns the site of each task.

    Raises:
      ClusterConfigError: the hosts cannot reach one of them.
    """
    if len(sites) > 1:
        for site in sites:
            if site.host.is_loopback:
                raise ClusterConfigError(
                    "--hosts: expected this machine by a name at which the other hosts can reach "
                    f"it, received {site.host.name}"
                )
    roles = [role for role, _ in _roles(options)]
    if not options.hosts and options.discovery_script is None:
        return [sites[0]] * len(roles)
    by_name = {site.host.name: site for site in sites}
    # Of an elastic job, slots that no host has yet. Their workers get a place when they start.
    open_slots = 0
    if options.discovery_script is not None:
        open_slots = max(0, options.slots - sum(site.host.slots for site in sites))
    chosen = place(roles[open_slots:], [site.host for site in sites])
    placed = [by_name[host.name] for host in chosen]
    workers = options.slots - open_slots
    return [*placed[:workers], *[sites[0]] * open_slots, *placed[workers:]]


def _begun_with(options: LaunchOptions, slots: int) -> LaunchOptions:
    """Returns the options of a job that begins with as many workers as there are slots."""
    assert isinstance(options.workers, WorkerRange)
    start = min(options.workers.start, slots)
    workers = WorkerRange(options.workers.minimum, options.workers.maximum, start)
    return dataclasses.replace(options, workers=workers)


def _discovered(
    options: LaunchOptions, timeout: float, start_timeout: float | None
) -> tuple[Host, ...]:
    """Asks the script for hosts until they have a slot for each worker of the beginning.

    Args:
      options: name the script, and the numbers of workers.
      timeout: seconds until there must be enough.
      start_timeout: seconds after which the least number of workers is enough; None: never.

    Raises:
      ClusterConfigError: the script fails, or the hosts have too few slots for `timeout` seconds.
    """
    assert isinstance(options.workers, WorkerRange) and options.discovery_script is not None
    needed = options.workers.start
    deadline = time.monotonic() + timeout
    # From when on the job may begin with the least number, which must be there all the time.
    begins = None
    last = -1
    while True:
        hosts = discovery.ask(options.discovery_script)
        slots = sum(host.slots for host in hosts)
        if slots >= needed:
            return hosts
        if slots < options.workers.minimum:
            begins = None
        elif start_timeout is not None and begins is None:
            begins = time.monotonic() + start_timeout
        if begins is not None and time.monotonic() >= begins:
            return hosts
        if time.monotonic() > deadline:
            raise ClusterConfigError(
                f"--host-discovery-script: expected hosts with {needed} slots within "
                f"{timeout:g} s, received {slots} slots"
            )
        if slots != last:
            print(f"tfdist run: waiting for {needed} slots; there are {slots}", file=sys.stderr)
            last = slots
        time.sleep(discovery.INTERVAL)


def run(options: LaunchOptions) -> int:
    """Starts the job and waits for its end. Call it in the main thread: it handles signals.

    Args:
      options: the tasks.

    Returns:
      The launcher's exit code: 0; the code of the first task that failed (128 + the number of the
      signal that ended it); 124 at the time limit; 130 after Ctrl-C, 143 after SIGTERM, 129 after
      SIGHUP.

    Raises:
      OSError: the log directory cannot be made, the timeline cannot be written, the job file
        exists, a process does not start, or too few ports are free.
      ClusterConfigError: the secret or the port for metrics in the environment is unusable.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_ended_by_signals())
        page = stack.enter_context(DashboardProcess.ended_at_last()) if options.dashboard else None
        code = _run(options, page)
        if page is not None:
            page.stay(code)
        return code


def _run(options: LaunchOptions, page: DashboardProcess | None) -> int:
    """Runs the job, see `run`; `page` is started once the job file is there."""
    if options.log_dir is not None:
        options.log_dir.mkdir(parents=True, exist_ok=True)
    environment = environment_with_secret()
    if options.tls:
        environment = environment_with_tls(environment)
    if isinstance(options.workers, WorkerRange):
        environment["TFDIST_ELASTIC"] = str(options.workers)
        environment["TFDIST_JOB_ID"] = environment.get("TFDIST_JOB_ID") or _new_job_id()
    if options.start_timeout is not None:
        environment["TFDIST_ELASTIC_START_TIMEOUT"] = str(options.start_timeout)
    settings = Settings.from_environment(environment)
    assert settings.secret is not None
    if settings.tls is not None:
        _check_tls(options, settings.tls)
        encryption = printable(str(settings.tls))
        print(f"tfdist run: connections between tasks are encrypted: {encryption}", file=sys.stderr)
    streams = output_streams()
    with contextlib.ExitStack() as stack:
        agents = AgentCommand(options.ssh, options.python or sys.executable)
        hosts = options.hosts
        if options.discovery_script is not None:
            hosts = _discovered(
                options, settings.rendezvous_timeout, settings.elastic_start_timeout
            )
            options = _begun_with(options, sum(host.slots for host in hosts))
            environment["TFDIST_ELASTIC"] = str(options.workers)
        if hosts and b"\0" in settings.secret:
            raise ClusterConfigError(
                "TFDIST_SECRET_FILE: expected a secret that can be a variable on other hosts, "
                "received one with a zero byte; for instance 'openssl rand -hex 32' makes one"
            )
        connector = Connector(_own_names(), agents, streams[1])
        stack.callback(connector.close)
        sites = connector.connect_all(hosts) if hosts else [this_machine()]
        placed = _placed(options, sites)
        tasks = plan(options, sites=placed)
        file = JobFile(
            tasks[0].tf_config,
            settings.secret.decode("latin-1"),
            tls=settings.tls.variables if settings.tls is not None else {},
        )
        passed = passed_environment(environment, settings.secret, options.env)
        directories = []
        if options.data_workers and settings.data_service_dir is None:
            # With a journal, a dispatcher that is started again knows the datasets and their state.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tfdist-data-"))
            environment["TFDIST_DATA_SERVICE_DIR"] = folder
            directories.append("TFDIST_DATA_SERVICE_DIR")
        dumped = None
        if settings.debug_dir is None:
            dumped = stack.enter_context(debug_directory("tfdist run"))
            folder = str(dumped.path)
            environment["TFDIST_DEBUG_DIR"] = folder
            directories.append("TFDIST_DEBUG_DIR")
        else:
            # The tasks have the same working directory, other programs have not.
            folder = str(Path(settings.debug_dir).absolute())
            environment["TFDIST_DEBUG_DIR"] = passed["TFDIST_DEBUG_DIR"] = folder
        file = dataclasses.replace(file, debug_dir=folder)
        if settings.tombstone_dir is not None:
            folder = str(Path(settings.tombstone_dir).absolute())
            environment["TFDIST_TOMBSTONE_DIR"] = passed["TFDIST_TOMBSTONE_DIR"] = folder
        elif isinstance(options.workers, WorkerRange):
            # A worker that starts while the others end must not train everything again.
            folder = str(stack.enter_context(private_directory("tfdist-ended-")))
            environment["TFDIST_TOMBSTONE_DIR"] = folder
            directories.append("TFDIST_TOMBSTONE_DIR")
        if options.timeline is not None or settings.timeline is not None:
            timeline = (options.timeline or Path(settings.timeline or "")).absolute()
            environment["TFDIST_TIMELINE"] = passed["TFDIST_TIMELINE"] = str(timeline)
            stack.enter_context(_merged_timeline(timeline))
        listener = None
        if isinstance(options.workers, WorkerRange):
            listener, socket_path = stack.enter_context(scale_listener())
            file = dataclasses.replace(file, scale_socket=str(socket_path))
        ports = _metrics(options, tasks, settings, placed)
        for variables in (environment, passed):
            ports.set_variables(variables)
        file = dataclasses.replace(file, metrics=dict(ports.addresses))
        name = job_registry.new_name()
        _set_state_directory(environment, passed, name)
        arguments = [*_program(options), *options.arguments]
        command = JobCommand(sys.executable, arguments, environment, passed, directories)
        takes_gpus = [_takes_gpus(role) for role, _ in _roles(options)]
        shares = GpuShares(options.gpus_per_worker, takes_gpus)
        pool = HostPool(command, sites, placed, options.binding, shares)
        findings = Findings(Path(environment["TFDIST_DEBUG_DIR"]), time.time())
        supervisor = _supervisor(options, tasks, pool, connector, streams, listener, findings)
        path = stack.enter_context(file.written(options.job_file))
        if options.job_file is None:
            print(f"tfdist run: this job's file, for 'tfdist top --job': {path}", file=sys.stderr)
        note_end = stack.enter_context(_registered(name, options, tasks, path, streams))
        if page is not None:
            page.start(path)
        code = supervisor.run()
        note_end(code, supervisor.exits)
        if code == 0:
            if dumped is not None:
                dumped.is_needed = False
            pool.note_success()
        return code


def _check_tls(options: LaunchOptions, tls: Tls) -> None:
    """Raises ClusterConfigError where each task would."""
    if options.data_workers:
        raise ClusterConfigError(
            f"--data-workers {options.data_workers}: expected none with encrypted connections "
            "(--tls, TFDIST_TLS): TensorFlow's data service has no encryption"
        )
    if tls.secret is not None or not (options.hosts or options.discovery_script):
        # Not above: it needs an extra. Files may be on the other hosts alone.
        from tfdist.control.tls.credentials import credentials_of

        credentials_of(tls)


def _metrics(
    options: LaunchOptions, tasks: Sequence[TaskSpec], settings: Settings, placed: Sequence[Site]
) -> metrics_ports.MetricsPorts:
    """Returns where the tasks serve their metrics.

    Raises:
      ClusterConfigError: the ports in the environment are unusable, or the dashboard needs some.
      OSError: too few ports are free.
    """
    if not options.metrics:
        return metrics_ports.MetricsPorts()
    is_here = options.discovery_script is None and all(site.host.is_loopback for site in placed)
    ports = metrics_ports.choose(tasks, settings, is_here)
    if options.dashboard and not ports.addresses:
        raise ClusterConfigError(
            "--dashboard: expected tasks that serve metrics, received none: tasks of several hosts "
            "need TFDIST_METRICS_PORT=0"
        )
    return ports


def _set_state_directory(environment: dict[str, str], passed: dict[str, str], name: str) -> None:
    """Says to the tasks of this machine where they leave their last states.

    Args:
      environment: of these tasks.
      passed: of tasks on other hosts, whose files would lie there.
      name: the job's.
    """
    for variables in (environment, passed):
        variables.pop("TFDIST_STATE_DIR", None)
    folder = job_registry.state_directory(name)
    if folder is not None:
        environment["TFDIST_STATE_DIR"] = str(folder)


@contextlib.contextmanager
def _registered(
    name: str,
    options: LaunchOptions,
    tasks: Sequence[TaskSpec],
    file: Path,
    streams: Sequence[OutputStream],
) -> Iterator[job_registry.NoteEnd]:
    """Lists the job for `tfdist jobs`, and keeps its newest output for `tfdist logs`.

    Yields:
      A function that notes the job's exit code, and the tasks'.
    """
    entry = job_registry.JobEntry(
        name=name,
        pid=os.getpid(),
        command=[options.module or str(options.script), *options.arguments],
        directory=os.getcwd(),
        tasks=[task.name for task in tasks],
        job_file=str(file.absolute()),
        began=time.time(),
    )
    with job_registry.registered(entry) as note_end, contextlib.ExitStack() as stack:
        if entry.log is not None:
            kept = KeptOutput(entry.log)
            stack.callback(kept.close)
            for stream in streams:
                stream.keep = kept.line
        yield note_end


def _new_job_id() -> str:
    return f"run-{secrets.token_hex(8)}"


def _program(options: LaunchOptions) -> list[str]:
    """Returns the words after `python` that run the script, as Python itself finds it."""
    if options.module is None:
        return [str(options.script)]
    return own_module(options.module) if is_own(options.module) else ["-m", options.module]


def _own_names() -> set[str]:
    """Returns the names of this machine: "node1.example.org" and "node1"."""
    name = socket.gethostname()
    return {name, name.partition(".")[0]}


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Before the supervisor takes signals, and after it, they end this process as an exception.

    So it removes what it has made for the job, such as the file with the secret. Ctrl-C is an
    exception anyway.
    """

    def end(number: int, frame: object) -> None:
        sys.exit(128 + number)

    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        # nohup and background jobs ignore some signals on purpose.
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _merged_timeline(timeline: Path) -> Iterator[None]:
    """Merges what the tasks have written of their timeline, at the end of the job.

    Args:
      timeline: the file.

    Raises:
      OSError: it cannot be written, or another job writes it.
    """
    # Not above: they import gRPC, which other jobs' launchers do not need.
    from tfdist.observe.timeline import parts
    from tfdist.observe.timeline.merge import merge

    try:
        if parts.living(timeline):
            raise FileExistsError("another job is recorded there")
        parts.remove(timeline)  # of a launcher that was killed
        stack = contextlib.ExitStack()
        stack.enter_context(parts.claimed(timeline))
    except OSError as error:
        raise OSError(f"--timeline: cannot write {timeline}: {error}") from error
    with stack:
        try:
            yield
        except BaseException:
            if not parts.paths(timeline):
                parts.remove(timeline)
            raise
        # Without any, 'tfdist timeline stop' has merged them.
        if not parts.directory_of(timeline).exists():
            return
        try:
            found = printable(str(merge(timeline)))
            print(f"tfdist run: the job's timeline: {found}", file=sys.stderr)
        except (OSError, ValueError) as error:
            print(f"tfdist run: the job's timeline: {printable(str(error))}", file=sys.stderr)
            if not parts.paths(timeline):
                parts.remove(timeline)


def _supervisor(
    options: LaunchOptions,
    tasks: Sequence[TaskSpec],
    pool: HostPool,
    connector: Connector,
    streams: tuple[OutputStream, OutputStream],
    listener: socket.socket | None,
    findings: Findings,
) -> Supervisor:
    """Returns the supervisor of the tasks; `listener` is for `tfdist scale` of an elastic job."""
    job = RunningJob(
        tasks,
        pool,
        streams=streams,
        log_dir=options.log_dir,
        stop_grace=options.stop_grace,
        signal_grace=options.signal_grace,
        findings=findings,
    )
    if not isinstance(options.workers, WorkerRange):
        fixed = FixedPolicy([task.role for task in tasks], options.restarts)
        return Supervisor(job, fixed, timeout=options.timeout)
    assert listener is not None
    max_restarts = 10 if options.max_restarts is None else options.max_restarts
    policy = ElasticPolicy(
        options.workers, max_restarts, options.backoff, options.ps, options.final_codes
    )
    workers = ElasticWorkers(
        job,
        policy,
        listener=listener,
        connect=connector.connect,
        cooldown=options.cooldown or Cooldown(),
        discovery_script=options.discovery_script,
    )
    return Supervisor(job, policy, timeout=options.timeout, workers=workers)
