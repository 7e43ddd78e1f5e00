"""A process that comes when its elastic job has ended ends, and founds no other one."""

from __future__ import annotations

import logging
import os
import re
import time
from types import SimpleNamespace

import pytest

from single.elastic.elastic_members import QUICK, TIMEOUT, addresses, closing, founded
from support.elastic.control_tasks import Background
from support.patience import wait_until
from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.config.elastic import Elastic
from tfdist.config.settings import Settings
from tfdist.elastic import start
from tfdist.elastic.job import ElasticJob
from tfdist.elastic.membership import Membership
from tfdist.elastic.tombstone import JobEnded, Tombstone
from tfdist.job import process


def settings(folder, job="night", **more):
    return Settings(tombstone_dir=str(folder), job_id=job, rendezvous_timeout=TIMEOUT, **more)


def membership(known, index, own, founders=2):
    cluster = Cluster(workers=tuple(known), task_index=index)
    return Membership(cluster, own, Elastic(1, 2, founders), {}, timing=QUICK)


def test_a_job_that_has_ended(tmp_path, caplog):
    folder = tmp_path / "of" / "all jobs"
    own = Tombstone(settings(folder), "worker 0")
    own.check()
    before = time.time()
    own.leave()
    with pytest.raises(JobEnded) as caught:
        Tombstone(settings(folder), "worker 1").check()
    assert isinstance(caught.value, SystemExit) and caught.value.code == 0
    (line,) = caplog.messages
    found = re.fullmatch(
        r"worker 1: the job night has ended at (.{10} .{8}).*; this process has come too late, "
        "and ends",
        line,
    )
    assert found is not None
    assert abs(time.mktime(time.strptime(found[1], "%Y-%m-%d %H:%M:%S")) - before) < 60
    own.leave()


def test_other_jobs_are_not_affected(tmp_path):
    Tombstone(settings(tmp_path), "worker 0").leave()
    for job in ("night2", "nigh", "Night", "night.ended"):
        Tombstone(settings(tmp_path, job), "worker 0").check()
    Tombstone(Settings(), "worker 0").leave()
    Tombstone(Settings(job_id="night"), "worker 0").check()


def test_a_directory_that_cannot_be_used(tmp_path, caplog):
    file = tmp_path / "file"
    file.touch()
    own = Tombstone(settings(file), "worker 0")
    own.leave()
    for _ in range(3):
        own.check()
    assert [line.partition(":")[0] for line in caplog.messages] == ["worker 0"] * 2
    assert "cannot tell later processes that the job night has ended" in caplog.messages[0]
    assert "cannot see whether the job night has ended" in caplog.messages[1]


def test_a_late_process_binds_no_port(tmp_path):
    known = addresses(2)
    with closing() as processes:
        founded(processes, 2, known=known)
        Tombstone(settings(tmp_path), "worker 0").leave()
        with pytest.raises(JobEnded):
            membership(known, 1, settings(tmp_path))


def test_a_founder_that_waits_ends_with_the_job(tmp_path):
    late = membership(addresses(2), 0, settings(tmp_path))
    call = Background(late.begin)
    wait_until(lambda: late.process in late._state._founders or call.done(), "the arrival")
    assert not call.done()
    Tombstone(settings(tmp_path), "worker 1").leave()
    with pytest.raises(JobEnded):
        call.result()
    late.leave()


@pytest.mark.parametrize("calls_ended", [0, 1])
def test_a_newcomer_whose_members_end_does_not_form_the_job_again(tmp_path, calls_ended):
    known = addresses(2)
    with closing() as processes, ops.Communicator(0, 1, resizable=True) as communicator:
        founded(processes, 1, Elastic(1, 2, 1), known=known)
        late = membership(known, 1, settings(tmp_path), 1)
        assert late.begin() is None
        late.stand(calls_ended, calls_ended)
        call = Background(lambda: late.form(communicator))
        Tombstone(settings(tmp_path), "worker 0").leave()
        processes[0].leave()
        with pytest.raises(JobEnded):
            call.result()
        late.leave()


class Job:
    """Notes whether it is marked as ended."""

    marked = 0

    def mark_end(self):
        self.marked += 1


@pytest.mark.parametrize(
    ("at_end", "failed", "preempted", "marked"),
    [
        (True, False, False, 1),
        (True, True, False, 0),
        (True, False, True, 0),
        # A script that leaves its job continues, and may fail.
        (False, False, False, 0),
    ],
)
def test_the_end_of_a_script_marks_its_job(monkeypatch, at_end, failed, preempted, marked):
    callers = []
    own = process.Process()
    own.is_at_end, own.is_preempted = at_end, preempted
    monkeypatch.setattr(own, "before_leaving", callers.append)
    monkeypatch.setattr(process, "current", own)
    job = Job()
    assert start._joined(job) is job
    (mark_end,) = callers
    mark_end(failed)
    assert job.marked == marked


@pytest.mark.parametrize(
    ("is_leader", "leaves", "ends", "marked"),
    [
        (True, False, False, 1),
        (False, False, False, 0),
        (True, True, False, 0),
        (True, False, True, 0),
    ],
)
def test_rank_0_marks_a_job_that_has_done_its_work(is_leader, leaves, ends, marked):
    marks = []
    own = SimpleNamespace(
        is_leader=is_leader,
        leaves=leaves,
        ends=ends,
        _pid=os.getpid(),
        _membership=SimpleNamespace(tombstone=SimpleNamespace(leave=lambda: marks.append(1))),
    )
    ElasticJob.mark_end(own)
    assert len(marks) == marked
    own._pid = 0  # in a forked child
    ElasticJob.mark_end(own)
    assert len(marks) == marked


def test_the_log_is_one_sentence(tmp_path, caplog):
    caplog.set_level(logging.INFO, "tfdist")
    Tombstone(settings(tmp_path), "worker 0").leave()
    with pytest.raises(JobEnded):
        membership(addresses(2), 0, settings(tmp_path))
    assert len(caplog.messages) == 1
