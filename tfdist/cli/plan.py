"""The command `tfdist plan`. It needs neither TensorFlow nor a cluster, except for --model."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist._extras import install_command
from tfdist.cli.arguments import seconds, whole_number
from tfdist.config.printing import printable
from tfdist.plan import units

if TYPE_CHECKING:
    from tfdist.plan.report import Plan

DESCRIPTION = """\
Predicts what a training step takes on more machines: the time of the exchange, the step, the
efficiency, the speedup, and the bandwidth that a target efficiency needs, for tfdist's all-reduce
and for parameter servers. 1 MB is 10^6 bytes, 1 Gbit/s is 10^9 bit/s."""
EPILOG = """\
examples:
  tfdist plan --parameters 138.36M --workers 4 --bandwidth 125MB/s --compute 0.55 --target 0.9
      VGG-16 on four machines with 1 Gbit/s links, 0.55 s of computing a step
  tfdist plan --model train.py --workers 8 --bandwidth 10Gbit/s --latency 50us -- --epochs 1
      measures parameters and computing by some steps of train.py, whose option is --epochs
  tfdist plan --parameters 25.6M --compute 0.2 --workers 16 --bandwidth 10Gbit/s
      --workers-per-host 4 --local-bandwidth 2GB/s --chart plan.png
      four workers on each of four machines; also draws a chart

exit code:
  0; 1 if the script could not be measured or the chart could not be drawn; 2 for a wrong command
  line; 130 after Ctrl-C.
"""
_VALUE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument(
        "--parameters",
        type=units.count,
        metavar="N",
        help="trainable parameters, such as 138.36M; with --compute",
    )
    parser.add_argument(
        "--compute",
        type=units.duration,
        metavar="S",
        help="seconds of a step of one worker alone, such as 0.55 or 550ms; with --parameters",
    )
    parser.add_argument(
        "--model",
        type=Path,
        metavar="FILE",
        help="measure both: run this training script alone, and end it after some steps",
    )
    parser.add_argument(
        "--workers", type=whole_number(1), required=True, metavar="N", help="their number"
    )
    parser.add_argument(
        "--bandwidth",
        type=units.rate,
        required=True,
        metavar="RATE",
        help="of a host's link in each direction, such as 125MB/s or 1Gbit/s",
    )
    parser.add_argument(
        "--latency",
        type=units.latency,
        default=0.0,
        metavar="S",
        help="of a message between hosts, such as 50us (default: 0)",
    )
    parser.add_argument(
        "--target",
        type=units.fraction,
        metavar="E",
        help="an efficiency, such as 0.9, to tell the bandwidth for",
    )
    parser.add_argument(
        "--dtype",
        choices=_VALUE_BYTES,
        default="float32",
        help="of the gradients on the network (default: float32)",
    )
    parser.add_argument(
        "--servers",
        type=whole_number(1),
        default=1,
        metavar="N",
        help="parameter servers, each on a host of its own (default: 1)",
    )
    parser.add_argument(
        "--workers-per-host",
        type=whole_number(1),
        default=1,
        metavar="N",
        help="workers that share a host and its link; needs --local-bandwidth (default: 1)",
    )
    parser.add_argument(
        "--local-bandwidth",
        type=units.rate,
        metavar="RATE",
        help="between two workers of a host, such as 2GB/s",
    )
    parser.add_argument(
        "--backward",
        type=units.fraction,
        metavar="PART",
        help="the part of the computing that is back-propagation (default: 2/3; with --model the "
        "times at which gradients are complete are measured)",
    )
    parser.add_argument(
        "--memory",
        type=units.size,
        metavar="SIZE",
        help="that a worker may use, such as 16GB; with --model: compares it with the needs of "
        "each stage of tfdist.Sharding",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="also draw a chart, as PNG")
    parser.add_argument(
        "--model-steps",
        type=whole_number(1),
        default=10,
        metavar="N",
        help="steps of the script to time, after three others (default: 10)",
    )
    parser.add_argument(
        "--model-timeout",
        type=seconds,
        default=600.0,
        metavar="S",
        help="seconds until the script must have made them (default: 600)",
    )
    parser.add_argument(
        "script_arguments", nargs="*", metavar="ARGUMENT", help="after --: arguments of the script"
    )
    # For options that do not fit together.
    parser.set_defaults(parser=parser)


def run(chosen: argparse.Namespace) -> int:
    """Prints the plan; returns the exit code.

    Raises:
      SystemExit: with code 2 for options that do not fit together.
    """
    _check(chosen, chosen.parser)
    # Not above: --help does not need them.
    from tfdist.plan import costs, measure, report
    from tfdist.plan.traffic import Links

    measured = None
    try:
        if chosen.model is not None:
            measured = measure.measure(
                chosen.model, chosen.script_arguments, chosen.model_steps, chosen.model_timeout
            )
    except KeyboardInterrupt:
        return 130
    except (measure.MeasurementError, OSError) as error:
        return _failed(str(error))
    links = Links(chosen.bandwidth, chosen.latency)
    if chosen.workers_per_host > 1:
        links = Links(chosen.bandwidth, chosen.latency, chosen.local_bandwidth)
    training = costs.PlannedTraining(
        parameters=chosen.parameters if measured is None else measured.dense,
        compute=chosen.compute if measured is None else measured.compute,
        links=links,
        value_bytes=_VALUE_BYTES[chosen.dtype],
        tables=() if measured is None else measured.tables,
        per_host=chosen.workers_per_host,
        servers=chosen.servers,
        backward=chosen.backward or costs.BACKWARD,
        # An option outweighs what was measured.
        profile=measured.profile if measured is not None and chosen.backward is None else (),
    )
    plan = report.Plan(training, chosen.workers, chosen.target, measured, chosen.memory)
    print(
        json.dumps(report.as_json(plan), indent=2) if chosen.json else printable(report.text(plan))
    )
    return 0 if chosen.chart is None else _draw(plan, chosen.chart)


def _check(chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    given = [
        name
        for name, value in (("--parameters", chosen.parameters), ("--compute", chosen.compute))
        if value is not None
    ]
    if chosen.model is None and len(given) < 2:
        received = f"{given[0]} alone" if given else "none of them"
        parser.error(
            f"expected --parameters and --compute, or --model to measure both, received {received}"
        )
    if chosen.model is None and chosen.memory is not None:
        parser.error("--memory: expected --model, which is measured, too")
    if chosen.model is not None and given:
        parser.error(f"--model measures what {given[0]} gives: expected one of the two")
    if chosen.model is None and chosen.script_arguments:
        parser.error(
            f"expected arguments for the script of --model only, received "
            f"{chosen.script_arguments[0]!r} without --model"
        )
    if chosen.model is not None and not chosen.model.is_file():
        problem = "is not a file" if chosen.model.exists() else "does not exist"
        parser.error(f"--model: expected a script, but {chosen.model} {problem}")
    if chosen.workers_per_host > 1 and chosen.local_bandwidth is None:
        parser.error(
            f"--workers-per-host {chosen.workers_per_host}: expected --local-bandwidth too, "
            f"{units.RATE_FORM}, received none"
        )
    if chosen.local_bandwidth is not None and chosen.workers_per_host == 1:
        parser.error("--local-bandwidth: expected --workers-per-host of 2 or more, received 1")


def _draw(plan: Plan, file: Path) -> int:
    from tfdist.plan import chart

    try:
        chart.draw(plan, file)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        return _failed(
            f"--chart: expected matplotlib, which is not installed: {install_command('plan')}"
        )
    except OSError as error:
        return _failed(f"--chart: expected a file that can be written, received {file}: {error}")
    return 0


def _failed(message: str) -> int:
    print(f"tfdist plan: error: {printable(message)}", file=sys.stderr)
    return 1
