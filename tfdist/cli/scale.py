"""The command `tfdist scale`: the number of workers of a running elastic job."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tfdist.cli.arguments import whole_number

DESCRIPTION = """\
Sets the number of workers of a running elastic job ('tfdist run --workers MIN:MAX'), from MIN to
MAX. More workers: it starts the workers with the lowest free numbers, and at last workers that were
left out because they failed again and again. Fewer: the workers with the highest numbers get
SIGTERM, and leave after their step. The others continue."""
EPILOG = """\
examples:
  tfdist scale 4 --job /tmp/tfdist-1000/4711.json
      four workers; 'tfdist run' has printed the path of this file

exit code:
  0; 1 if the launcher did not answer; 2 if the job has ended or is not elastic, for a number
  outside MIN to MAX, and for a wrong command line; 130 after Ctrl-C.
"""
# Seconds. The launcher answers at once, but the children of an ended worker can delay it by 5 s.
_TIMEOUT = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument(
        "workers", type=whole_number(1), metavar="N", help="the number of workers, from MIN to MAX"
    )
    parser.add_argument(
        "--job",
        type=Path,
        metavar="FILE",
        help="the job file, which 'tfdist run' writes and removes at the job's end (default: "
        "your only running job's)",
    )
    parser.set_defaults(instead_of_job=())


def run(chosen: argparse.Namespace) -> int:
    """Asks the launcher, and prints what it has done; returns the exit code."""
    # Not above: --help does not need it.
    from tfdist.config.job_file import JobFile
    from tfdist.config.printing import printable_line
    from tfdist.errors import ClusterConfigError
    from tfdist.launch.policies.elastic import ScaleError
    from tfdist.launch.scale_channel import request_scale

    file: Path = chosen.job
    try:
        file.stat()
        job = JobFile.read(file)
    except FileNotFoundError:
        return _refused(f"{file}: no such file; has the job ended?")
    except OSError as error:
        return _refused(f"{file}: expected a job file: {error.strerror}")
    except ClusterConfigError as error:
        return _refused(str(error))
    if job.scale_socket is None:
        return _refused(
            f"{file}: expected an elastic job, as 'tfdist run --workers MIN:MAX' starts, received "
            "one with a fixed number of workers"
        )
    try:
        lines = request_scale(Path(job.scale_socket), chosen.workers, _TIMEOUT)
    except ScaleError as error:
        return _refused(str(error))
    except KeyboardInterrupt:
        return 130
    except TimeoutError:
        return _refused(f"{file}: the launcher did not answer within {_TIMEOUT:g} s", code=1)
    except (ConnectionError, FileNotFoundError):
        return _refused(f"{file}: the job has ended")
    except (OSError, ValueError) as error:
        return _refused(f"{file}: cannot ask the launcher: {error}", code=1)
    print("\n".join(map(printable_line, lines)))
    return 0


def _refused(reason: str, code: int = 2) -> int:
    from tfdist.config.printing import printable

    print(f"tfdist scale: error: {printable(reason)}", file=sys.stderr)
    return code
