"""A job begins with fewer members than it starts with, when the time for the others is over."""

from __future__ import annotations

import logging
import time

import pytest

from single.elastic.elastic_members import Process, addresses, check, closing, joining, together
from tfdist.config.elastic import Elastic
from tfdist.errors import ClusterConfigError, RendezvousTimeoutError

THREE = Elastic(2, 3, 3)


def test_two_of_three_begin_and_the_third_joins(caplog):
    caplog.set_level(logging.WARNING, "tfdist.elastic")
    with closing() as processes:
        known = addresses(3)
        processes.extend(Process(known, index, THREE, start_timeout=1.0) for index in (0, 1))
        began = time.monotonic()
        check(processes, together([process.start for process in processes]))
        assert time.monotonic() - began >= 1.0
        assert sum("begins with 2 of 3 processes" in line for line in caplog.messages) == 2
        call = joining(processes, known, 2, THREE, start_timeout=1.0)
        worlds = together([processes[0].form, processes[1].form])
        check(processes, [*worlds, call.result()], newcomers=[2])


def test_all_begin_at_once_if_they_come_in_time():
    with closing() as processes:
        known = addresses(3)
        processes.extend(Process(known, index, THREE, start_timeout=60.0) for index in range(3))
        began = time.monotonic()
        check(processes, together([process.start for process in processes]))
        assert time.monotonic() - began < 50.0


def test_fewer_than_the_least_number_wait():
    with closing() as processes:
        processes.append(Process(addresses(3), 0, THREE, start_timeout=0.2, timeout=1.5))
        message = "expected 3 processes, or 2 for 0.2 s, worker 0 at .* still missing: worker 1"
        with pytest.raises(RendezvousTimeoutError, match=message):
            processes[0].start()


def test_without_the_first_address_nobody_begins():
    with closing() as processes:
        known = addresses(3)
        processes.extend(
            Process(known, index, THREE, start_timeout=0.2, timeout=1.5) for index in (1, 2)
        )

        def refused(process):
            with pytest.raises(RendezvousTimeoutError) as caught:
                process.start()
            return str(caught.value)

        for text in together([lambda p=process: refused(p) for process in processes]):
            assert f"worker 0 at {known[0]} among them, at which they meet" in text
            assert f"still missing: worker 0 at {known[0]}" in text


def test_a_founder_with_another_time_is_refused():
    with closing() as processes:
        known = addresses(2)
        processes.append(Process(known, 0, Elastic(1, 2, 2), start_timeout=15.0))
        processes.append(Process(known, 1, Elastic(1, 2, 2), start_timeout=14.0))
        with pytest.raises(ClusterConfigError, match="of 1 after 14 s, this task one of 2, or of"):
            together([processes[1].start, lambda: None])
