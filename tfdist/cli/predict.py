"""The command `tfdist predict`. It starts fast: it imports the rest when it runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tfdist.cli import start_options
from tfdist.cli.arguments import seconds, whole_number
from tfdist.config.printing import printable
from tfdist.config.validation import addresses_in
from tfdist.errors import ClusterConfigError
from tfdist.launch.policies.elastic import Backoff, WorkerRange
from tfdist.prediction.options import FINAL_CODE, PredictOptions

DESCRIPTION = """\
Predicts each record of some files exactly once, into files of an output folder. With --workers or
hosts it starts the workers, which may be killed, leave and join. Else this process is one worker,
so that 'srun' and 'mpirun' can start several. All must see the output folder. Started again, it
continues with the missing parts."""
EPILOG = f"""\
examples:
  tfdist predict --model served --input 'in/*.tfrecord' --output out --workers 2:8
      two workers, and up to eight with 'tfdist scale'
  tfdist predict --model model.keras --input 'in/*.csv' --reader lines --header 1 \\
      --map features.py:parse --keep id --output out --format jsonl --errors park
      one worker, this process; bad lines go to out/_rejected
  srun -n 16 tfdist predict --model served --input 'in/*' --output /shared/out
      16 workers

exit code:
  0 when all parts are there; {FINAL_CODE} after an error that a new start would not mend; 143 when
  the workers were told to end; 2 for a wrong command line; else as for 'tfdist run'.
"""
_RESTARTS = 1000
# Deaths are expected: a record that kills its worker is parked by further starts.
_BACKOFF = Backoff(longest=5.0, soon=30.0, attempts=30)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    _add_prediction(parser)
    parser.add_argument(
        "--workers",
        type=start_options.worker_numbers,
        metavar="N",
        help="processes that predict, started here or on the hosts; with MIN:MAX or MIN:MAX:START "
        "'tfdist scale' changes their number (default: with hosts all their slots, else this "
        "process)",
    )
    start_options.add_hosts(parser)
    parser.add_argument(
        "--max-restarts",
        type=whole_number(0),
        default=_RESTARTS,
        metavar="N",
        help=f"start killed workers again, N times in all (default: {_RESTARTS})",
    )
    start_options.add_limits(parser)
    start_options.add_observation(parser)
    parser.set_defaults(parser=parser)


def _add_prediction(parser: argparse.ArgumentParser) -> None:
    default = PredictOptions("", (), "")
    add = parser.add_argument
    add("--model", required=True, metavar="PATH", help="a SavedModel's folder, or a .keras file")
    add(
        "--input",
        required=True,
        action="append",
        metavar="PATTERN",
        help="input files, such as 'in/*.tfrecord'; may be repeated",
    )
    add("--output", required=True, metavar="DIR", help="a new folder, or the folder of this job")
    add(
        "--reader",
        choices=("tfrecord", "lines", "parquet"),
        default=default.reader,
        help=f"the format of the input (default: {default.reader})",
    )
    add(
        "--header",
        type=whole_number(0),
        default=default.header,
        metavar="N",
        help="lines that each file begins with and that are no records (default: 0)",
    )
    add(
        "--task-size",
        type=whole_number(1),
        default=default.task_size,
        metavar="N",
        help=f"records of a part (default: {default.task_size})",
    )
    add(
        "--batch-size",
        type=whole_number(1),
        default=default.batch_size,
        metavar="N",
        help=f"records of a batch (default: {default.batch_size})",
    )
    add(
        "--map",
        metavar="FUNCTION",
        help="the function from a record to features, as MODULE:NAME or FILE.py:NAME (default: the "
        "model takes the records)",
    )
    add(
        "--keep",
        action="append",
        default=[],
        metavar="NAME",
        help="write this feature beside the predictions; may be repeated",
    )
    add("--signature", metavar="NAME", help="of a SavedModel (default: serving_default)")
    add(
        "--tables",
        type=_addresses,
        metavar="ADDRESSES",
        help="the addresses of all servers of 'tfdist ps serve', in their order: a model of "
        "tfdist.export_for_serving(tables='served') looks its rows up there",
    )
    add(
        "--format",
        choices=("parquet", "tfrecord", "npz", "jsonl"),
        default=default.format,
        help=f"of the parts (default: {default.format})",
    )
    add(
        "--errors",
        choices=("fail", "park", "park-all"),
        default=default.errors,
        help="end at a bad record, or name it in DIR/_rejected; park-all: also if there is no good "
        "record (default: fail)",
    )
    add(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="a Keras metric of all rows; --map then returns (features, labels); may be repeated",
    )
    add(
        "--lease",
        type=seconds,
        default=default.lease,
        metavar="S",
        help="on another machine, a worker that is silent for so long counts as dead (default: 30)",
    )


def run(chosen: argparse.Namespace) -> int:
    """Predicts; returns the exit code.

    Raises:
      SystemExit: with code 2 for options that do not fit together.
    """
    options = PredictOptions(
        # On another host a worker may begin in another folder.
        model=str(Path(chosen.model).absolute()),
        inputs=tuple(map(_absolute, chosen.input)),
        output=str(Path(chosen.output).absolute()),
        reader=chosen.reader,
        header=chosen.header,
        task_size=chosen.task_size,
        map=_absolute(chosen.map) if chosen.map and ".py:" in chosen.map else chosen.map,
        batch_size=chosen.batch_size,
        keep=tuple(chosen.keep),
        format=chosen.format,
        errors=chosen.errors,
        metrics=tuple(chosen.metric),
        signature=chosen.signature,
        tables=chosen.tables,
        lease=chosen.lease,
    )
    if not start_options.workers(chosen) and chosen.host_discovery_script is None:
        # Not above: it imports TensorFlow.
        from tfdist.prediction import command

        return command.run(options)
    return _launch(chosen, options)


def _absolute(path: str) -> str:
    """Returns a path or pattern from the root on; of another file system as it is."""
    return path if "://" in path else str(Path(path).absolute())


def _addresses(text: str) -> tuple[str, ...]:
    try:
        return tuple(addresses_in(text, "--tables", "servers of tables"))
    except ClusterConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _launch(chosen: argparse.Namespace, options: PredictOptions) -> int:
    # Not above: --help does not need it.
    from tfdist.launch import run as launch

    start_options.check(chosen)
    workers = start_options.workers(chosen)
    if not isinstance(workers, WorkerRange):
        # The job continues while there is one.
        workers = WorkerRange(1, workers, workers)
    try:
        return launch.run(
            launch.LaunchOptions(
                module="tfdist.prediction.command",
                arguments=[options.text()],
                workers=workers,
                max_restarts=chosen.max_restarts,
                backoff=_BACKOFF,
                final_codes=(FINAL_CODE,),
                **start_options.launch_options(chosen),
            )
        )
    except ClusterConfigError as error:
        parser: argparse.ArgumentParser = chosen.parser
        parser.error(str(error))
    except OSError as error:
        print(f"tfdist predict: error: {printable(str(error))}", file=sys.stderr)
        return 1
