"""Claims: one living owner, taken over after a death, with the deaths before."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tfdist.prediction.claims import Claims
from tfdist.prediction.deaths import Death
from tfdist.prediction.folder import OutputFolder
from tfdist.prediction.worker import remove_abandoned
from tfdist.prediction.workers import LivingWorker, new_id


class Job:
    """Workers of one folder, in this process."""

    def __init__(self, path):
        self.path = path
        self.workers = []

    def worker(self, lease=30.0):
        id = new_id()
        folder = OutputFolder(self.path, id)
        folder.open()
        worker = LivingWorker(id, folder.workers, f"worker {len(self.workers)}", lease)
        self.workers.append(worker.__enter__())
        return Claims(folder, worker, 10), worker

    def die(self, worker):
        """Ends a worker as a kill does: the lock ends, its file stays."""
        worker._ended.set()
        worker._thread.join()
        os.close(worker._descriptor)
        self.workers.remove(worker)

    def close(self):
        for worker in self.workers:
            worker.__exit__()


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path / "out")
    yield job
    job.close()


def test_a_claim_has_one_owner(job):
    (first, worker), (second, _) = job.worker(), job.worker()
    claim = first.take(7)
    assert claim is not None and not claim.deaths.is_careful
    assert first.take(7) is None and second.take(7) is None
    assert second._folder.claimed() == {7: worker.id}
    assert second._folder.name_of_worker(worker.id) == "worker 0"
    first.release(claim, is_done=True)
    other = second.take(7)
    assert other is not None and not other.deaths.is_careful
    second.release(other, is_done=False)
    assert second._folder.claimed() == {}


def test_a_death_is_kept_with_its_note(job):
    first, worker = job.worker()
    claim = first.take(7)
    claim.note("fast", 20)
    claim.note("fast", 30)
    claim.close()
    job.die(worker)
    second, other = job.worker()
    claim = second.take(7)
    assert claim.deaths.all == (Death("fast", 30),)
    claim.note("row", 33)
    claim.close()
    job.die(other)
    third, _ = job.worker()
    claim = third.take(7)
    assert claim.deaths.all == (Death("fast", 30), Death("row", 33))
    # An owner that leaves is no death, and keeps those before it.
    claim.note("row", 34)
    third.release(claim, is_done=False)
    fourth, _ = job.worker()
    claim = fourth.take(7)
    assert claim.deaths.all == (Death("fast", 30), Death("row", 33))
    fourth.release(claim, is_done=True)
    assert os.listdir(job.path / "_job/claims") == []


@pytest.mark.parametrize("machine", ["another", "this"])
def test_a_silent_worker_is_dead_after_a_lease(job, monkeypatch, machine):
    first, worker = job.worker(lease=30.0)
    second, other = job.worker(lease=30.0)
    claim = first.take(7)
    if machine == "another":
        monkeypatch.setattr("tfdist.prediction.workers.machine_id", lambda: machine)
    assert second.take(7) is None
    path = job.path / "_job/workers" / worker.id
    os.utime(path, (0, os.stat(path).st_mtime - 31))
    taken = second.take(7)
    assert taken is not None and taken.deaths.all == ()  # it had noted nothing
    # The former owner lives after all, and gives back what is not its own any more.
    first.release(claim, is_done=True)
    assert second._folder.claimed() == {7: other.id}
    second.release(taken, is_done=True)


def test_a_damaged_claim_has_no_owner(job):
    claims, _ = job.worker()
    (job.path / "_job/claims/000007").write_bytes(b"\0" * 20)
    claim = claims.take(7)
    assert claim is not None and claim.deaths.all == ()
    claims.release(claim, is_done=True)


def test_a_worker_that_starts_is_not_taken_for_dead(job):
    _, cleaner = job.worker()
    folder = OutputFolder(job.path, cleaner.id)
    ended = threading.Event()

    def clean():
        while not ended.is_set():
            remove_abandoned(folder, cleaner)

    with ThreadPoolExecutor(1) as pool:
        cleaning = pool.submit(clean)
        try:
            for _ in range(100):
                claims, worker = job.worker()
                claims._folder.check_links()
                staged = claims._folder.stage("part")
                staged.touch()
                remove_abandoned(folder, cleaner)
                assert staged.exists() and worker._path.exists()
        finally:
            ended.set()
        cleaning.result()
