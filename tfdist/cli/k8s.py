"""The command `tfdist k8s`: the manifests of a job, and its secret."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist._extras import install_command
from tfdist.cli.arguments import add_command, seconds, whole_number

if TYPE_CHECKING:
    from tfdist.kubernetes import Patch

DESCRIPTION = f"""\
Writes Kubernetes manifests. They are printed, for a file in git or for 'kubectl apply -f -'. It
asks no cluster. Needs PyYAML: {install_command("k8s")}."""
EPILOG = None
RENDER_DESCRIPTION = """\
Prints the manifests of a job: the object that starts its pods, a headless service, disruption
budgets, and as asked for a priority class, a gang, volumes, an autoscaler, a PodMonitor and a
network policy.
Everything after -- is the command of each container. The secret is not among them: 'tfdist k8s
secret' makes it."""
RENDER_EPILOG = """\
engines:
  jobset       JobSet: all roles are one object (needs its controller)
  job          indexed Jobs, one for each role: Kubernetes alone; elastic jobs can be scaled
  trainjob     Kubeflow's TrainJob, with a TrainingRuntime
  tfjob        Kubeflow's TFJob, which is deprecated; a fixed number of workers
  statefulset  for an elastic job that never ends, with --autoscale

examples:
  tfdist k8s render --name train --image registry.example/train:1 --workers 4 -- python train.py
      four workers
  tfdist k8s render --name train --image registry.example/train:1 --workers 2:8 --ps 2 \\
      --evaluator --engine job --volume checkpoints:/checkpoints --checkpoint-dir /checkpoints \\
      -- python train.py
      an elastic job: it begins with two workers, and takes up to eight as there is room
  tfdist k8s secret --name train | kubectl apply -f -
      its secret, once

exit code:
  0; 2 for a wrong command line, values that cannot be used, and without PyYAML.
"""
SECRET_DESCRIPTION = """\
Prints a new random secret for a job, as a manifest. Give it to kubectl at once, and keep it out of
git."""
SECRET_EPILOG = """\
example:
  tfdist k8s secret --name train | kubectl apply -f -

exit code:
  0; 2 for a wrong command line, names that cannot be used, and without PyYAML.
"""


def add_arguments(k8s: argparse.ArgumentParser) -> None:
    """Adds the commands `render` and `secret`."""
    commands = k8s.add_subparsers(dest="of_k8s", title="commands", metavar="COMMAND", required=True)
    summary = "the job and the objects beside it"
    render = add_command(commands, "render", summary, RENDER_DESCRIPTION, RENDER_EPILOG)
    render.usage = "tfdist k8s render [options] -- program [its own arguments]"
    _add_tasks(render)
    _add_pods(render)
    _add_protection(render)
    _add_scheduling(render)
    render.add_argument(
        "--patch",
        action="append",
        default=[],
        metavar="FILE",
        help="merge parts of objects in this file of YAML into the rendered objects; may be "
        "repeated",
    )
    render.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    summary = "its shared secret"
    secret = add_command(commands, "secret", summary, SECRET_DESCRIPTION, SECRET_EPILOG)
    secret.add_argument(
        "--tls",
        action="store_true",
        help="for a job with --tls: also the authority that the secret makes, by which Prometheus "
        "verifies the pods",
    )
    for parser in (render, secret):
        parser.add_argument("--name", required=True, help="the job's name")
        parser.add_argument("--namespace", metavar="NAME", help="default: kubectl's")


def run(chosen: argparse.Namespace) -> int:
    """Prints the manifests; returns the exit code."""
    # Not above: --help does not need it.
    from tfdist import kubernetes
    from tfdist.errors import ClusterConfigError

    try:
        if chosen.of_k8s == "secret":
            print(kubernetes.secret(chosen.name, chosen.namespace, chosen.tls), end="")
        else:
            print(_rendered(chosen), end="")
    except ClusterConfigError as error:
        print(f"tfdist k8s {chosen.of_k8s}: error: {error}", file=sys.stderr)
        return 2
    return 0


def _add_tasks(render: argparse.ArgumentParser) -> None:
    render.add_argument("--image", required=True, help="of all containers")
    render.add_argument(
        "--engine",
        choices=("jobset", "job", "trainjob", "tfjob", "statefulset"),
        default="jobset",
        help="the kind of object that starts the pods (default: jobset)",
    )
    render.add_argument(
        "--workers",
        default="1",
        metavar="N",
        help="training tasks (default: 1). MIN:MAX or MIN:MAX:START makes an elastic job, which "
        "begins as soon as START workers run (default: MIN)",
    )
    render.add_argument(
        "--parallelism",
        type=whole_number(1),
        metavar="N",
        help="worker pods of an elastic job to ask for at first, START to MAX (default: MAX)",
    )
    render.add_argument(
        "--ps", type=whole_number(0), default=0, metavar="N", help="parameter servers (default: 0)"
    )
    render.add_argument("--evaluator", action="store_true", help="have an evaluator too")
    render.add_argument(
        "--predict",
        action="store_true",
        help="the program is 'tfdist predict', whose pods come and go; with --engine job",
    )
    render.add_argument(
        "--restarts",
        type=whole_number(0),
        default=3,
        metavar="N",
        help="start again what fails, N times (default: 3). Preempted pods do not count",
    )
    render.add_argument(
        "--saving",
        type=seconds,
        default=10.0,
        metavar="S",
        help="seconds from SIGTERM until the job is saved, as its log says (default: 10). The "
        "pods have three times as many before they are killed, and 30 at least",
    )


def _add_pods(render: argparse.ArgumentParser) -> None:
    worker, server = "of each worker, and the evaluator", "of each parameter server"
    render.add_argument("--cpu", metavar="N", help=f"{worker}, such as 4 or 500m")
    render.add_argument("--memory", metavar="N", help=f"{worker}, such as 8Gi")
    render.add_argument(
        "--gpus", type=whole_number(0), default=0, metavar="N", help="NVIDIA GPUs of each worker"
    )
    render.add_argument(
        "--ps-cpu",
        metavar="N",
        default="2",
        help=f"{server} (default: 2); none leaves it to the namespace",
    )
    render.add_argument(
        "--ps-memory",
        metavar="N",
        default="4Gi",
        help=f"{server}, from 1Gi on (default: 4Gi), or none. TFDIST_PS_MEMORY is 768Mi or an "
        "eighth less, whichever is more",
    )
    render.add_argument(
        "--volume",
        action="append",
        default=[],
        metavar="CLAIM:PATH[:ro]",
        help="mount a persistent volume claim in all pods; may be repeated",
    )
    render.add_argument(
        "--checkpoint-dir", metavar="PATH", help="TFDIST_CHECKPOINT_DIR, in one of the volumes"
    )
    render.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a further variable of all containers; may be repeated",
    )
    render.add_argument(
        "--user",
        type=whole_number(1),
        default=10001,
        metavar="UID",
        help="user and group of the containers (default: 10001, as in tfdist's Dockerfile)",
    )
    render.add_argument(
        "--metrics-port",
        type=whole_number(1),
        metavar="P",
        help="serve the metrics of each pod at this port, which annotations show to Prometheus",
    )
    render.add_argument(
        "--pod-monitor",
        action="store_true",
        help="let the Prometheus operator find the metrics, by a PodMonitor",
    )


def _add_protection(render: argparse.ArgumentParser) -> None:
    render.add_argument(
        "--read-only-root",
        action="store_true",
        help="let the containers write in their volumes and /tmp alone, which is then a directory "
        "of the pod's own",
    )
    render.add_argument(
        "--network-policy",
        action="store_true",
        help="let only the job's own pods connect to its pods, and others to its metrics",
    )
    render.add_argument(
        "--no-egress",
        action="store_true",
        help="of the network policy: also let the pods connect to each other and to DNS alone",
    )
    render.add_argument(
        "--metrics-namespace",
        metavar="NAME",
        help="of the network policy: the namespace that reads metrics (default: all can)",
    )
    render.add_argument(
        "--tls",
        action="store_true",
        help="encrypt all connections between the tasks, with certificates made from the secret",
    )
    render.add_argument(
        "--tls-issuer",
        metavar="[ClusterIssuer/]NAME",
        help="encrypt with a certificate that this issuer of cert-manager makes",
    )


def _add_scheduling(render: argparse.ArgumentParser) -> None:
    render.add_argument(
        "--kueue", metavar="QUEUE", help="the local queue of Kueue that admits the job"
    )
    render.add_argument(
        "--volcano", metavar="QUEUE", help="the queue of Volcano, which starts the pods as a gang"
    )
    render.add_argument(
        "--priority",
        type=int,
        metavar="N",
        help="make a priority class of this value; 0 or less preempts no other pod",
    )
    render.add_argument("--priority-class", metavar="NAME", help="use an existing one")
    render.add_argument(
        "--autoscale",
        type=whole_number(1),
        metavar="TASKS",
        help="of a statefulset: one worker for this many data tasks that wait",
    )


def _rendered(chosen: argparse.Namespace) -> str:
    from tfdist.config.elastic import Elastic
    from tfdist.errors import ClusterConfigError
    from tfdist.kubernetes import Engine, JobOptions, Resources, Volume, render

    words = chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command
    workers: int | Elastic
    if ":" in chosen.workers:
        workers = Elastic.from_text(chosen.workers, "--workers")
    else:
        try:
            workers = whole_number(1)(chosen.workers)
        except argparse.ArgumentTypeError as error:
            raise ClusterConfigError(f"--workers: {error}; or MIN:MAX, such as 2:8") from None
    environment = []
    for text in chosen.env:
        name, equals, value = text.partition("=")
        if not equals:
            raise ClusterConfigError(f"--env: expected NAME=VALUE, received {text!r}")
        environment.append((name, value))
    job = JobOptions(
        name=chosen.name,
        image=chosen.image,
        command=tuple(words),
        engine=Engine(chosen.engine),
        workers=workers,
        parallelism=chosen.parallelism,
        ps=chosen.ps,
        evaluator=chosen.evaluator,
        namespace=chosen.namespace,
        restarts=chosen.restarts,
        saving=chosen.saving,
        worker=Resources(chosen.cpu, chosen.memory),
        server=Resources(*_of_server(chosen)),
        gpus=chosen.gpus,
        volumes=tuple(Volume.from_text(text) for text in chosen.volume),
        checkpoint_dir=chosen.checkpoint_dir,
        environment=tuple(environment),
        user=chosen.user,
        kueue=chosen.kueue,
        volcano=chosen.volcano,
        priority=chosen.priority,
        priority_class=chosen.priority_class,
        metrics_port=chosen.metrics_port,
        pod_monitor=chosen.pod_monitor,
        read_only_root=chosen.read_only_root,
        network_policy=chosen.network_policy,
        no_egress=chosen.no_egress,
        metrics_namespace=chosen.metrics_namespace,
        tasks_per_worker=chosen.autoscale,
        tls=chosen.tls,
        tls_issuer=chosen.tls_issuer,
        predicts=chosen.predict,
    )
    patched = [patch for file in chosen.patch for patch in _patches(file)]
    return render(job, made_by=_made_by(chosen, words), patched=patched)


def _patches(file: str) -> list[Patch]:
    from tfdist.errors import ClusterConfigError
    from tfdist.kubernetes import Patch

    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ClusterConfigError(
            f"--patch: expected a file of YAML, received {file}: {error}"
        ) from None
    return Patch.from_text(text, f"--patch {file}")


def _of_server(chosen: argparse.Namespace) -> list[str | None]:
    return [None if text == "none" else text for text in (chosen.ps_cpu, chosen.ps_memory)]


def _made_by(chosen: argparse.Namespace, words: list[str]) -> str:
    """Returns a command line that prints the same text."""
    parts = ["tfdist", "k8s", "render"]
    for name, value in vars(chosen).items():
        option = "--" + name.replace("_", "-")
        if name in ("subcommand", "of_k8s", "command", "command_module") or value in (None, []):
            continue
        if isinstance(value, list):
            parts += [f"{option}={one}" for one in value]
        elif isinstance(value, bool):
            parts += [option] if value else []
        else:
            parts.append(f"{option}={value:g}" if isinstance(value, float) else f"{option}={value}")
    return shlex.join([*parts, "--", *words])
