"""`tfdist ps follow`: a training's tables in a folder of their own, whole and then as changes."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

import tfdist
from support.patience import wait_until
from support.served_tables import Training, addresses, serving, values_of, write_model
from tfdist.control.client import UnreachableError
from tfdist.errors import CheckpointError
from tfdist.ps.checkpoint import checkpoint, files
from tfdist.serving.tables import follow, publication
from tfdist.serving.tables.publisher import Publisher
from tfdist.serving.tables.training import SnapshotFolder

pytestmark = pytest.mark.timeout(60)
CREATE = files.create


@pytest.fixture
def training(tmp_path):
    training = Training(tmp_path / "snapshots")
    training.set({i: float(i) for i in range(100)})
    training.save()
    return training


def _full(path, *arguments, **options):
    """Makes files on a disk that is full where tables are published."""
    if "/published/" in path:
        raise OSError(errno.ENOSPC, "No space left on device", path)
    return CREATE(path, *arguments, **options)


def publish(publisher, training):
    return publisher.publish(publication.latest(training.root))


def reaches(server, number):
    wait_until(lambda: server.number == number, f"publication {number}")


def served_rows(folder, tmp_path, ids):
    """Returns the first numbers of rows as a server has them that reads the folder now."""
    group = addresses(1)
    with serving(folder, group, 0):
        model = tfdist.serving.load(write_model(tmp_path / "model"), group)
        values = values_of(model, ids)
        model.table_connection.close()
    return values


def test_whole_then_changes(training, tmp_path):
    publisher = Publisher(str(tmp_path / "published"))
    first = publish(publisher, training)
    assert (first.number, first.rows, first.is_whole) == (1, 100, True)
    assert publish(publisher, training) is None
    for value in (1.0, 2.0):  # two snapshots of the training make one publication
        training.set({7: value, int(200 + value): value})
        training.save()
    second = publish(publisher, training)
    assert (second.number, second.is_whole) == (2, False)
    assert second.rows == 4
    training.remove(8)
    training.save(full=True)
    third = publish(publisher, training)
    assert (third.number, third.rows, third.is_whole) == (3, 101, True)
    values = served_rows(tmp_path / "published", tmp_path, [7, 8, 9, 201, 202])
    assert values[0] == 2 and values[2:] == [9, 1, 2]
    assert -1 <= values[1] <= 1


def make_old(*folders):
    """Makes the manifests of folders 1,000 seconds old."""
    then = time.time() - 1000
    for folder in folders:
        os.utime(folder / "manifest.json", (then, then))


def files_of(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_snapshot_without_changes_makes_no_publication(training, tmp_path):
    target = tmp_path / "published"
    publisher = Publisher(str(target))
    publish(publisher, training)
    before, manifest = files_of(target), (target / "manifest.json").read_bytes()
    for _ in range(2):
        training.save()
        make_old(target)
        assert publish(publisher, training) is None
        # The published state is as old as this snapshot; files have whole seconds.
        assert publication.latest(str(target)).written > time.time() - 500
    assert files_of(target) == before and (target / "manifest.json").read_bytes() == manifest
    training.set({7: 70.0})
    training.save()
    publisher = Publisher(str(target))  # continues from the last snapshot, too
    done = publish(publisher, training)
    assert (done.number, done.rows, done.is_whole) == (2, 1, False)
    training.remove(8)  # no row, and yet a change
    training.save()
    assert publish(publisher, training).number == 3
    assert served_rows(target, tmp_path, [6, 7]) == [6, 70]


def test_an_idle_training_is_not_published_again(training, tmp_path, monkeypatch):
    """However many snapshots it writes; they are as many files as before, and can be restored."""
    monkeypatch.setattr(checkpoint, "_MAX_CHAIN", 3)
    target = tmp_path / "published"
    publisher = Publisher(str(target))
    publish(publisher, training)
    training.set({7: 70.0})
    training.save()
    assert publish(publisher, training).number == 2
    counts = []
    for number in range(6):
        training.save()
        assert publish(publisher, training) is None
        counts.append(len(files_of(tmp_path / "snapshots")))
        if number == 3:
            publisher = Publisher(str(target))  # continues from a snapshot without changes
    assert counts[-1] == counts[1]
    # The first change is published alone; too many are still a whole snapshot.
    wholes = []
    for value in (71.0, 72.0):
        training.set({7: value})
        training.save()
        wholes.append(publish(publisher, training).is_whole)
    assert wholes == [False, True]
    assert served_rows(target, tmp_path, [6, 7]) == [6, 72]
    assert served_rows(tmp_path / "snapshots", tmp_path, [6, 7]) == [6, 72]


def test_tables_without_rows_are_not_published_again(tmp_path):
    training = Training(tmp_path / "snapshots")
    training.save()
    publisher = Publisher(str(tmp_path / "published"))
    assert publish(publisher, training).rows == 0
    training.save()
    assert publish(publisher, training) is None


def test_an_old_snapshot_of_a_training_is_not_renewed(training, tmp_path):
    """Without later snapshots it is unknown whether the rows have changed."""
    publisher = Publisher(str(tmp_path / "published"))
    publish(publisher, training)
    make_old(tmp_path / "snapshots", tmp_path / "published")
    before = publication.latest(str(tmp_path / "published")).written
    assert publish(publisher, training) is None
    assert publish(Publisher(str(tmp_path / "published")), training) is None
    assert publication.latest(str(tmp_path / "published")).written == before


def test_variables_and_tables_are_changes_too(training, tmp_path):
    publisher = Publisher(str(tmp_path / "published"))
    publish(publisher, training)
    for values in ([1.0, 2.0], [1.0, 3.0]):
        training.set_variable(values)
        training.save()
        assert publish(publisher, training).rows == 0
        training.save()
        assert publish(publisher, training) is None
    training.add_table("films")
    training.save()
    assert publish(publisher, training).rows == 0
    found = publication.latest(str(tmp_path / "published"))
    assert found.number == 4 and found.variables()["kernel"].tolist() == [1.0, 3.0]


def test_a_server_knows_that_nothing_has_changed(training, tmp_path):
    target = tmp_path / "published"
    publisher = Publisher(str(target))
    publish(publisher, training)
    make_old(target)
    with serving(target, addresses(1), 0, follow=0.02) as server:
        reaches(server, 1)
        _, before = server.latest_snapshot
        training.save()
        assert publish(publisher, training) is None
        wait_until(lambda: server.latest_snapshot[1] > before + 500, "the later time")
        assert server.latest_snapshot[0] == 1


def test_published_rows_have_no_slots(training, tmp_path):
    publish(Publisher(str(tmp_path / "published")), training)
    one, other = [
        sum(path.stat().st_size for path in root.rglob("*.rows"))
        for root in (tmp_path / "snapshots", tmp_path / "published")
    ]
    assert one - other == 100 * 4 * 4  # of Adagrad's accumulators


def test_a_new_publisher_continues(training, tmp_path):
    target = str(tmp_path / "published")
    publish(Publisher(target), training)
    training.set({7: 70.0})
    training.save()
    second = publish(Publisher(target), training)
    assert (second.number, second.rows, second.is_whole) == (2, 1, False)
    (tmp_path / "published" / "source.json").write_text("{")
    assert publish(Publisher(target), training).is_whole
    assert served_rows(target, tmp_path, [6, 7]) == [6, 70]


def test_a_full_disk_delays_changes_and_loses_none(training, tmp_path, monkeypatch):
    publisher = Publisher(str(tmp_path / "published"))
    publish(publisher, training)
    training.set({1: 10.0})
    training.save()
    with monkeypatch.context() as patch:
        patch.setattr(files, "create", _full)
        with pytest.raises(OSError, match="No space left on device: .*published/ps-0-of-2"):
            publish(publisher, training)
    assert publication.latest(str(tmp_path / "published")).number == 1
    training.set({2: 20.0})
    training.save()
    assert publish(publisher, training).rows == 2
    assert served_rows(tmp_path / "published", tmp_path, [1, 2, 3]) == [10, 20, 3]


def test_a_damaged_snapshot_is_not_published(training, tmp_path):
    publisher = Publisher(str(tmp_path / "published"))
    publish(publisher, training)
    training.set({1: 10.0})
    training.save_damaged()
    with pytest.raises(CheckpointError, match="is damaged: expected checksum"):
        publish(publisher, training)
    assert publication.latest(str(tmp_path / "published")).number == 1
    training.save(full=True)
    assert publish(publisher, training).is_whole
    assert served_rows(tmp_path / "published", tmp_path, [1, 2]) == [10, 2]


def test_a_server_follows_a_publication(training, tmp_path):
    target = tmp_path / "published"
    publisher = Publisher(str(target))
    publish(publisher, training)
    group = addresses(1)
    with serving(target, group, 0, follow=0.02) as server:
        model = tfdist.serving.load(write_model(tmp_path / "model"), group)
        for value in (3.0, 4.0):
            training.set({3: value})
            training.save()
            reaches(server, publish(publisher, training).number)
            assert values_of(model, [3, 5]) == [value, 5]
        model.table_connection.close()


def test_the_command_says_that_a_disk_is_full_and_continues(
    training, tmp_path, monkeypatch, caplog
):
    target = tmp_path / "published"
    running = follow.Following(SnapshotFolder(training.root), Publisher(str(target)), None)
    thread = threading.Thread(target=running.run, args=(0.02,))
    thread.start()
    try:
        wait_until(lambda: (target / "source.json").exists(), "the first publication")
        with monkeypatch.context() as patch:
            patch.setattr(files, "create", _full)
            training.set({1: 10.0})
            training.save()
            wait_until(lambda: "No space left on device" in caplog.text, "the message")
        wait_until(lambda: publication.latest(str(target)).number == 2, "the second one")
    finally:
        running.stop()
        thread.join()
    assert served_rows(target, tmp_path, [1, 2]) == [10, 2]


def test_the_last_snapshot_of_an_ended_job_is_published(training, tmp_path):
    target, job = tmp_path / "published", tmp_path / "job.json"
    job.touch()
    running = follow.Following(SnapshotFolder(training.root), Publisher(str(target)), job)
    ended = []
    thread = threading.Thread(target=lambda: ended.append(running.run(3600.0)))
    thread.start()
    try:
        wait_until(lambda: (target / "source.json").exists(), "the first publication")
        training.set({1: 10.0})
        training.save()
        job.unlink()
        wait_until(lambda: ended, "the end")
    finally:
        running.stop()
        thread.join()
    assert ended == [0]
    assert served_rows(target, tmp_path, [1, 2]) == [10, 2]


def test_servers_that_end_with_their_job_are_no_error(training, tmp_path, caplog):
    target, job = tmp_path / "published", tmp_path / "job.json"
    job.touch()

    class Ending(SnapshotFolder):
        """A job whose servers end before its file is removed."""

        def snapshot(self):
            if not (target / "source.json").exists():
                return super().snapshot()
            threading.Timer(0.3, lambda: job.unlink(missing_ok=True)).start()
            raise UnreachableError("connection refused")

    assert follow.Following(Ending(training.root), Publisher(str(target)), job).run(0.02) == 0
    assert "connection refused" not in caplog.text


def test_a_last_snapshot_that_cannot_be_read_is_an_error(training, tmp_path, capsys):
    target, job = tmp_path / "published", tmp_path / "job.json"
    job.touch()
    running = follow.Following(SnapshotFolder(training.root), Publisher(str(target)), job)
    ended = []
    thread = threading.Thread(target=lambda: ended.append(running.run(3600.0)))
    thread.start()
    try:
        wait_until(lambda: (target / "source.json").exists(), "the first publication")
        (Path(training.root) / "manifest.json").unlink()
        job.unlink()
        wait_until(lambda: ended, "the end")
    finally:
        running.stop()
        thread.join()
    assert ended == [1]
    assert "expected the folder of a complete snapshot" in capsys.readouterr().err


def test_a_job_without_ps_tasks_is_told_how_its_tables_are_followed(tmp_path, capsys):
    workers = '{"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}}'
    assert follow.follow(str(tmp_path / "published"), 60.0, None, workers, None) == 2
    error = capsys.readouterr().err
    assert "expected a job with ps tasks" in error
    assert "give their folder as --checkpoint-dir, without --job and --cluster" in error
