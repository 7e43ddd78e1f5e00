"""The command `tfdist plan` with given numbers."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tfdist.cli.main import main

PAGE = Path(__file__).parents[3] / "docs/operate/plan.md"
VGG = "plan --parameters 138.36M --workers 4 --bandwidth 125MB/s --compute 0.55".split()


def planned(capsys, *options: str) -> str:
    assert main([*VGG, *options]) == 0
    return capsys.readouterr().out


def test_the_table_has_the_published_numbers(capsys):
    out = planned(capsys, "--target", "0.9")
    assert re.search(
        r"^\* halving and doubling +6\.64 s +7\.19 s +0\.0765 +0\.31 +13,584 MB/s$",
        out,
        re.MULTILINE,
    )
    assert "dense parameters: 138.36 M, 553.44 MB of gradients a step" in out
    assert [int(n) for n in re.findall(r"^[> ] +(\d+)  +0", out, re.MULTILINE)] == [2, 4, 8, 16]
    assert "4 workers make 0.32 times and 8 workers make 0.55 times the samples per second" in out


@pytest.mark.parametrize(
    ("bandwidth", "verdict"),
    [
        (
            "125MB/s",
            "4 workers are not faster than one: 92% of a step is waiting for the network. A faster "
            "link, compressed gradients or larger batches make more workers pay.",
        ),
        (
            "1.5GB/s",
            "4 workers pay in part: 26% of a step is waiting for the network. Up to 2 workers pay.",
        ),
        ("1.8GB/s", "4 workers pay: 1"),
        ("50GB/s", "4 workers pay: the exchange hides behind the computing."),
    ],
)
def test_the_verdict(capsys, bandwidth, verdict):
    last = planned(capsys, "--bandwidth", bandwidth).splitlines()[-1]
    assert last.startswith(f"Verdict: {verdict}")


def test_one_worker_needs_no_verdict(capsys):
    assert "Verdict" not in planned(capsys, "--workers", "1")


def test_the_page_shows_the_table(capsys):
    command, shown = re.search(
        r"```console\n\$ tfdist (plan --parameters .*?)\n(.*?)```", PAGE.read_text(), re.DOTALL
    ).groups()
    assert main(command.split()) == 0
    assert capsys.readouterr().out == shown


def test_json_has_them_too(capsys):
    report = json.loads(planned(capsys, "--target", "0.9", "--json"))
    chosen, overlapped, *_ = report["methods"]
    assert chosen["method"] == "halving and doubling"
    assert chosen["chosen"] and not chosen["overlapped"]
    assert round(chosen["efficiency"], 4) == 0.0765 and round(chosen["step"], 2) == 7.19
    assert round(chosen["bandwidth_needed"] / 1e6) == 13_584
    assert overlapped["overlapped"] and overlapped["efficiency"] > chosen["efficiency"]
    assert report["gradient_bytes"] == 553_440_000 and report["bandwidth"] == 125e6
    assert {row["workers"] for row in report["by_workers"]} == {2, 4, 8, 16}


def test_without_a_target_no_bandwidth_is_told(capsys):
    assert "needs" not in planned(capsys)
    report = json.loads(planned(capsys, "--json", "--dtype", "float16"))
    assert all(row["bandwidth_needed"] is None for row in report["methods"])
    assert report["gradient_bytes"] == 276_720_000


def test_workers_that_share_hosts(capsys):
    options = "--workers-per-host 2 --local-bandwidth 2GB/s --latency 50us --servers 3".split()
    out = planned(capsys, *options)
    assert "* two-level, overlapped" in out and "parameter servers (3), sync" in out
    assert "latency 50.0 us; 2 workers on a host, 2,000 MB/s between them" in out


def test_a_chart(capsys, tmp_path):
    file = tmp_path / "plan.png"
    planned(capsys, "--target", "0.9", "--chart", str(file))
    assert file.read_bytes().startswith(b"\x89PNG\r\n")
    assert main([*VGG, "--chart", str(tmp_path / "no" / "plan.png")]) == 1
    assert "--chart: expected a file that can be written" in capsys.readouterr().err


def test_a_missing_matplotlib_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([*VGG, "--chart", str(tmp_path / "plan.png")]) == 1
    captured = capsys.readouterr()
    assert "0.0765" in captured.out
    assert "which is not installed: pip install matplotlib" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--workers 4 --bandwidth 1GB/s", "--model to measure both, received none of them"),
        ("--workers 4 --bandwidth 1GB/s --compute 1", "both, received --compute alone"),
        ("--workers 4 --compute 1 --parameters 1M", "required: --bandwidth"),
        (
            "--workers 4 --bandwidth 125 --compute 1 --parameters 1M",
            "argument --bandwidth: expected a rate above 0 such as 125MB/s or 1Gbit/s",
        ),
        (
            "--workers 0 --bandwidth 1GB/s --compute 1 --parameters 1M",
            "argument --workers: expected a whole number, 1 or more, received '0'",
        ),
        (
            "--workers 4 --bandwidth 1GB/s --compute 1 --parameters 1M --target 90",
            "argument --target: expected a number above 0 and below 1 such as 0.9, received '90'",
        ),
        (
            "--workers 4 --bandwidth 1GB/s --compute 1 --parameters 1M --workers-per-host 2",
            "--workers-per-host 2: expected --local-bandwidth too",
        ),
        (
            "--workers 4 --bandwidth 1GB/s --compute 1 --parameters 1M --local-bandwidth 1GB/s",
            "--local-bandwidth: expected --workers-per-host of 2 or more",
        ),
        ("--workers 4 --bandwidth 1GB/s --model nowhere.py", "nowhere.py does not exist"),
        ("--workers 4 --bandwidth 1GB/s --model .", ". is not a file"),
        (
            "--workers 4 --bandwidth 1GB/s --model x.py --compute 1",
            "--model measures what --compute gives",
        ),
        (
            "--workers 4 --bandwidth 1GB/s --compute 1 --parameters 1M -- --epochs",
            "expected arguments for the script of --model only, received '--epochs'",
        ),
    ],
)
def test_a_wrong_command_line_is_explained(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(["plan", *arguments.split()])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
