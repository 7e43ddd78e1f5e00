"""`python -m tfdist.server` in a task that has a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("kind", "name"), [("worker", "worker 0"), ("evaluator", "evaluator 0")])
def test_a_task_with_a_script_is_refused(kind, name):
    cluster = {"worker": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"], "evaluator": ["127.0.0.1:3"]}
    config = {"cluster": cluster, "task": {"type": kind, "index": 0}}
    ended = subprocess.run(
        [sys.executable, "-m", "tfdist.server"],
        env={**os.environ, "TF_CONFIG": json.dumps(config)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    told = f"tfdist.server: expected a ps or data task to serve, received {name}: "
    assert told in ended.stderr
