"""The commands of docs/operate/metrics.md run as written, and its table has every metric."""

from __future__ import annotations

import json
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.example_runs import ROOT, shell
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.data.queue.master import TaskMaster
from tfdist.observe.metrics.collector import describe
from tfdist.ops.ps.server_records import ServerStats, TableStats

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.long(covered_by="parallel/job/test_metrics.py"),
]
PAGE = (ROOT / "docs/operate/metrics.md").read_text()


def test_the_first_commands(tmp_path):
    write_script(tmp_path)
    shell(commands_below("## Ten lines that run"), tmp_path)
    assert 'tfdist_world_size{task="worker 1"} 2.0' in (tmp_path / "worker-1.txt").read_text()
    (group,) = json.loads((tmp_path / "targets.json").read_text())
    assert len(group["targets"]) == 2
    assert list(text_string_to_metric_families((tmp_path / "worker-1.txt").read_text()))


def test_the_commands_of_a_job_that_encrypts(tmp_path):
    write_script(tmp_path)
    shell(commands_below("### In a job that encrypts"), tmp_path)
    assert 'tfdist_world_size{task="worker 1"} 2.0' in (tmp_path / "worker-1.txt").read_text()
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


def commands_below(heading):
    _, _, section = PAGE.partition(f"\n{heading}\n")
    return re.search(r"```sh\n(.*?)```", section, re.DOTALL)[1]


def write_script(folder):
    launch = (ROOT / "docs/start/launch.md").read_text()
    (folder / "train.py").write_text(re.search(r"```python\n(.*?)```", launch, re.DOTALL)[1])


class Server:
    """A parameter server with a table, a snapshot and a queue."""

    latest_snapshot = (1, 2.0)

    def __init__(self):
        self.task_master = TaskMaster(Cluster())

    def reading(self):
        fields = ServerStats.__dataclass_fields__, TableStats.__dataclass_fields__
        of_server, of_table = (dict.fromkeys(names, 0) for names in fields)
        return {"seconds": 0.0, "incarnation": "1", "server": of_server, "tables": {"t": of_table}}


def test_the_table_has_every_metric():
    shown = set(re.findall(r"`(_?[a-z_]+)`", PAGE))
    names = set()
    for server in (None, Server()):
        for family in describe(Cluster(), Settings(), server):
            names.add(family.name + "_total" * family.is_counter)
    short = {f"tfdist_ps_client{name}" for name in shown if name.startswith("_")}
    assert names - shown - short == set()
    dashboard = (ROOT / "docs/operate/observability/tfdist-dashboard.json").read_text()
    assert set(re.findall(r"tfdist_[a-z_]+", dashboard)) <= shown
