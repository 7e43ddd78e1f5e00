"""Rendered pods as processes in namespaces: they meet by name, die, and are started again."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
from pathlib import Path

import pytest

from parallel.engines import kubelet
from support.held_prediction import HeldPrediction
from support.manifests import of_kind, options
from tfdist.config.elastic import Elastic

EXAMPLE = Path(__file__).parents[3] / "keras_examples/clusters/kubernetes.py"
SECRET = "0123456789abcdef0123456789abcdef"

pytestmark = [
    pytest.mark.skipif(kubelet.IS_MISSING, reason="needs root and iproute2"),
    # Real processes, and root.
    pytest.mark.long(
        covered_by="single/kubernetes/test_manifests.py, parallel/prediction/test_predict_deaths.py"
    ),
]


def weights(pod):
    (total,) = re.findall("^the weights' sum is (.*)$", pod.text(), re.MULTILINE)
    return float(total)


@pytest.mark.timeout(600)
def test_an_elastic_job_begins_with_few_and_goes_on(tmp_path):
    command = (sys.executable, str(EXAMPLE), "--output", str(tmp_path), "--epochs", "150")
    manifest = options("job", workers=Elastic.from_text("2:3"), command=command)
    (document,) = of_kind(manifest, "Job")
    with contextlib.closing(kubelet.Kubelet(8, tmp_path)) as node:
        # Three pods are asked for, and there is room for two.
        job = kubelet.IndexedJob(node, document, SECRET, room=2)
        job.run_until(lambda: any("Epoch 3/" in p.text() for p in job.pods.values()), 150)
        (first,) = (i for i, pod in job.pods.items() if "Epoch 3/" in pod.text())  # rank 0
        killed, other = job.pods[first], job.pods[1 - first]
        killed.process.kill()
        # Two are needed, so the other one waits for the pod that takes the killed one's place. Then
        # it is rank 0, and shows the epochs.
        job.run_until(lambda: other.text().count("Epoch") >= 2, 150)
        assert job.pods[first] is not killed
        # A notice with which too few would be left: both save, and are started again. Now there is
        # room for the third one, too.
        other.process.send_signal(signal.SIGTERM)
        job.room = 3
        job.run_until(job.is_complete, 250)
        assert job.ended[0] == (killed.name, 128 + signal.SIGKILL)
        totals = [weights(pod) for pod in job.succeeded]
    codes = [code for _, code in job.ended[1:]]
    assert set(codes) <= {0, 143} and 143 in codes, job.ended
    assert max(totals) - min(totals) < 1e-3, totals


@pytest.mark.timeout(600)
def test_a_prediction_survives_a_killed_pod(tmp_path):
    prediction = HeldPrediction(tmp_path)
    command = (sys.executable, "-m", "tfdist", *prediction.words())
    manifest = options("job", workers=Elastic.from_text("1:2"), command=command, predicts=True)
    (document,) = of_kind(manifest, "Job")
    with contextlib.closing(kubelet.Kubelet(8, tmp_path)) as node:
        job = kubelet.IndexedJob(node, document, SECRET, room=9)
        job.run_until(lambda: prediction.is_held(2), 200)
        killed = prediction.kill_one()
        (index,) = (index for index, pod in job.pods.items() if pod.process.pid == killed)
        dead = job.pods[index]
        # As `kubectl patch` does: more pods than the manifest says.
        document["spec"] |= {"completions": 3, "parallelism": 3}
        job.run_until(lambda: prediction.is_held(3), 200)
        assert job.pods[index] is not dead and len(job.pods) == 3
        prediction.let_go()
        job.run_until(job.is_complete, 200)
        assert job.ended[0] == (dead.name, 128 + signal.SIGKILL)
        # The others see the end, too.
        job.run_until(lambda: len(job.succeeded) == 3, 60)
        assert all("tfdist predict: 360 rows in 12 parts" in p.text() for p in job.succeeded)
    assert [code for _, code in job.ended[1:]] == [0, 0, 0], job.ended
    prediction.check()
