"""Numbers with units on the command line of `tfdist plan`."""

from __future__ import annotations

import argparse

import pytest

from tfdist.plan import units


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("25600000", 25_600_000),
        ("138.36M", 138_360_000),
        ("1.5G", 1_500_000_000),
        ("2k", 2000),
        ("2K", 2000),
        ("1e6", 1_000_000),
    ],
)
def test_count(text, value):
    assert units.count(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("125MB/s", 125e6),
        ("1Gbit/s", 125e6),
        ("100Mbit/s", 12.5e6),
        ("2.5 GB/s", 2.5e9),
        ("800bit/s", 100.0),
        ("3kB/s", 3000.0),
    ],
)
def test_rate(text, value):
    assert units.rate(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("0.55", 0.55), ("550ms", 0.55), ("50us", 50e-6), ("2 s", 2.0)]
)
def test_seconds(text, value):
    assert units.duration(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "form"),
    [
        (units.count, "0", "25.6M"),
        (units.count, "1.5", "25.6M"),
        (units.count, "12m", "25.6M"),
        (units.count, "1e999999999", "25.6M"),
        (units.count, "many", "25.6M"),
        (units.rate, "125", "125MB/s"),
        (units.rate, "125MB", "125MB/s"),
        (units.rate, "1Gb/s", "125MB/s"),
        (units.rate, "1MiB/s", "125MB/s"),
        (units.rate, "0MB/s", "125MB/s"),
        (units.rate, "-1MB/s", "125MB/s"),
        (units.duration, "0", "550ms"),
        (units.duration, "5min", "550ms"),
        (units.duration, "nan", "550ms"),
        (units.latency, "-1us", "550ms"),
        (units.fraction, "1", "0.9"),
        (units.fraction, "90%", "0.9"),
        (units.fraction, "nan", "0.9"),
    ],
)
def test_errors_show_the_expected_form_and_what_was_received(parse, text, form):
    with pytest.raises(argparse.ArgumentTypeError) as raised:
        parse(text)
    assert "expected" in str(raised.value) and form in str(raised.value)
    assert f"received {text!r}" in str(raised.value)


def test_values_are_shown_in_the_units_in_which_they_are_typed():
    assert units.show_rate(13_584.436e6) == "13,584 MB/s"
    assert units.show_rate(12.5e6) == "12.5 MB/s"
    assert units.show_seconds(7.19128) == "7.19 s"
    assert units.show_seconds(0.0611) == "61.1 ms"
    assert units.show_seconds(50e-6) == "50.0 us"
    assert units.show_seconds(0.0) == "0.00 us"
    assert units.show_bytes(553_440_000) == "553.44 MB"
    assert units.show_bytes(36) == "36 bytes"
    assert units.show_count(138_360_000) == "138.36 M"
