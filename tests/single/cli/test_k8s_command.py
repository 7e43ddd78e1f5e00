"""The command `tfdist k8s`."""

from __future__ import annotations

import re
import shlex
import sys

import pytest

from support.manifests import documents, options, read
from tfdist.cli.main import main
from tfdist.config.elastic import Elastic
from tfdist.kubernetes import Resources, Volume

GIVEN = (
    "k8s render --name train --image registry.example/train:1 --workers 2:8:3 --ps 2 --evaluator "
    "--engine job --parallelism 6 --namespace research --restarts 5 --saving 40 --cpu 4 "
    "--memory 8Gi --gpus 1 --ps-cpu none --ps-memory 2Gi --volume data:/data:ro "
    "--volume saved:/saved --checkpoint-dir /saved/train --env A=b=c --user 1000 "
    "--metrics-port 9400 --pod-monitor --kueue queue "
    "--priority -5 --read-only-root --network-policy --no-egress --metrics-namespace monitoring "
    "-- python train.py --name other"
)


def test_options_become_a_job(capsys):
    assert main(shlex.split(GIVEN)) == 0
    out = capsys.readouterr().out
    job = options(
        "job",
        workers=Elastic.from_text("2:8:3"),
        ps=2,
        evaluator=True,
        parallelism=6,
        namespace="research",
        restarts=5,
        saving=40.0,
        worker=Resources("4", "8Gi"),
        server=Resources(memory="2Gi"),
        volumes=(Volume("data", "/data", read_only=True), Volume("saved", "/saved")),
        checkpoint_dir="/saved/train",
        environment=(("A", "b=c"),),
        user=1000,
        metrics_port=9400,
        pod_monitor=True,
        gpus=1,
        read_only_root=True,
        network_policy=True,
        no_egress=True,
        metrics_namespace="monitoring",
        kueue="queue",
        priority=-5,
        command=("python", "train.py", "--name", "other"),
    )
    assert read(out) == documents(job)
    # The command at the top makes the same text.
    (command,) = re.findall("^# Made by: tfdist (.*)$", out, re.MULTILINE)
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--workers 4:2", "--workers 4:2: expected MAX to be at least MIN = 4, received 2"),
        ("--workers x", "--workers: expected a whole number, 1 or more, received 'x'; or MIN:MAX"),
        ("--env A", "--env: expected NAME=VALUE, received 'A'"),
        ("--engine tfjob --workers 2:8", "--engine tfjob: expected a fixed number of workers"),
        ("--pod-monitor", "--pod-monitor: expected --metrics-port P, at which metrics are read"),
        ("--cpu many", "--cpu: expected processors such as 4 or 500m"),
        ("--autoscale 3", "--autoscale: expected --engine statefulset, received jobset"),
    ],
)
def test_errors(capsys, arguments, message):
    code = main([*"k8s render --name a --image b".split(), *arguments.split(), "--", "python"])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and err.startswith(f"tfdist k8s render: error: {message}")


def test_the_secret(capsys):
    assert main("k8s secret --name train --namespace research".split()) == 0
    (document,) = read(capsys.readouterr().out)
    assert document["metadata"]["namespace"] == "research"


def test_without_pyyaml(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert main("k8s render --name a --image b -- python".split()) == 2
    assert "which is not installed: pip install PyYAML" in capsys.readouterr().err
