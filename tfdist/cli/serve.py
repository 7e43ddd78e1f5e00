"""The command `tfdist serve`. It starts fast: it imports the rest when it runs."""

from __future__ import annotations

import argparse
import functools
import ipaddress
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tfdist._extras import install_command, install_command_here
from tfdist.cli.arguments import seconds, whole_number

if TYPE_CHECKING:
    from tfdist.config.tls import Tls
    from tfdist.serving.model_server.server import ModelServer

DESCRIPTION = f"""\
Serves the newest version of each model to clients of TensorFlow Serving: gRPC's PredictionService
and ModelService, and REST below /v1/models. A version is a SavedModel in FOLDER/1, FOLDER/2, ...
A new one is taken up as soon as it is complete, and no request fails meanwhile. Also served: gRPC's
health protocol, /healthz, /readyz and /metrics. Needs the extra 'serve':
{install_command("serve")}"""
EPILOG = """\
examples:
  tfdist serve models/ranker
      the newest version of models/ranker, as the model "ranker"
  tfdist serve --host 0.0.0.0 main=models/ranker models/mobile
      two models, "main" and "mobile", to all clients that reach this machine
  tfdist serve --max-batch 64 --batch-delay 5 models/ranker
      joins requests that come together, up to 64 rows; none waits longer than 5 ms for others
  tfdist serve --tables host1:7000,host2:7000 models/ranker
      a model whose tables are on the servers of 'tfdist ps serve'

exit code:
  0 after SIGTERM, 130 after Ctrl-C: requests in progress are answered before. 2 for a wrong command
  line, a folder without a model, or a port that is taken.
"""

_NAMED = re.compile(r"(?:(?P<name>[^/:=]+)=)?(?P<folder>.+)")
_MEGABYTE = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument(
        "folders",
        type=_named_folder,
        nargs="+",
        metavar="[NAME=]FOLDER",
        help="has a folder for each version; the model's name is the folder's, or NAME",
    )
    parser.add_argument(
        "--host",
        type=_numeric,
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the numeric address to listen on (default: 127.0.0.1; 0.0.0.0: all)",
    )
    for option, default, what in (("--port", 8500, "gRPC"), ("--rest-port", 8501, "REST")):
        parser.add_argument(
            option,
            type=whole_number(0),
            default=default,
            metavar="P",
            help=f"the port of {what} (default: {default}; 0: any free one, which is printed)",
        )
    parser.add_argument(
        "--versions",
        type=whole_number(1),
        default=1,
        metavar="N",
        help="how many versions of a model are in memory: the N newest (default: 1)",
    )
    parser.add_argument(
        "--poll",
        type=seconds,
        default=1.0,
        metavar="S",
        help="look for new versions every S seconds (default: 1)",
    )
    parser.add_argument(
        "--max-batch",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="join requests that come together, up to N rows (default: 0, never). Only for models "
        "that compute each row by itself",
    )
    parser.add_argument(
        "--batch-delay",
        type=whole_number(0),
        default=5,
        metavar="MS",
        help="a request waits at most so long for others, and only while the model computes "
        "(default: 5)",
    )
    parser.add_argument(
        "--tables",
        metavar="HOST:PORT,...",
        help="the addresses of all servers of 'tfdist ps serve', in their order: models of "
        "tfdist.export_for_serving(tables='served') look their rows up there",
    )
    parser.add_argument(
        "--tables-wait",
        type=seconds,
        default=60.0,
        metavar="S",
        help="with --tables, wait for these servers for S seconds at the start, and say meanwhile "
        "that the server is not ready (default: 60)",
    )
    parser.add_argument(
        "--cache-rows",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="with --tables, the rows of each table that are cached here (default: 0)",
    )
    parser.add_argument(
        "--cache-seconds",
        type=seconds,
        default=1.0,
        metavar="S",
        help="a cached row is used for S seconds (default: 1; at least 1/16)",
    )
    parser.add_argument(
        "--max-request",
        type=whole_number(1),
        default=256,
        metavar="MB",
        help="the largest request (default: 256)",
    )
    parser.add_argument(
        "--max-json",
        type=whole_number(1),
        default=32,
        metavar="MB",
        help="the largest request of REST, also once it is uncompressed (default: 32): others wait "
        "while one is read, about a second for 32 MB of numbers",
    )
    parser.add_argument(
        "--threads",
        type=whole_number(1),
        default=32,
        metavar="N",
        help="requests of gRPC that are answered at a time (default: 32)",
    )
    parser.add_argument(
        "--drain",
        type=whole_number(0),
        default=0,
        metavar="S",
        help="after SIGTERM say for S seconds that the server is not ready, and still answer: load "
        "balancers then send requests elsewhere (default: 0)",
    )
    parser.add_argument(
        "--client-certificates",
        action="store_true",
        help="refuse clients without a certificate of the authority of TFDIST_TLS_CA",
    )


def run(chosen: argparse.Namespace) -> int:
    """Serves until a signal; returns the exit code."""
    import importlib.util

    from tfdist.config.printing import printable
    from tfdist.config.settings import Settings
    from tfdist.errors import TfdistError

    def refuse(text: str) -> int:
        print(f"tfdist serve: error: {printable(text)}", file=sys.stderr)
        return 2

    folders = dict(chosen.folders)
    if len(folders) < len(chosen.folders):
        names = [name for name, _ in chosen.folders]
        return refuse(f"expected a name for each model, received {names}; write NAME=FOLDER")
    if importlib.util.find_spec("tensorflow_serving") is None:
        return refuse(
            "expected the package tensorflow-serving-api, which is not installed: "
            f"{install_command_here('serve')}"
        )
    try:
        tls = Settings.from_environment().tls
        if chosen.client_certificates and tls is None:
            return refuse("--client-certificates: expected TFDIST_TLS_CERT and others, found none")
        with _Signals() as signals:
            server = _server(folders, chosen, tls)
            signals.is_starting = False
            return _serve(server, signals, chosen, tls)
    except _EndedAtStart as ended:
        return ended.exit_code
    except TfdistError as error:
        return refuse(str(error))


class _EndedAtStart(BaseException):
    """A signal has ended the start: `Exception` would be the failure of a model."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class _Signals:
    """Takes SIGTERM and SIGINT, as a context.

    Attributes:
      stopped: is set by a signal.
      is_starting: whether a signal ends the start, which may wait for servers, by an exception.
      exit_code: of the first signal.
    """

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.is_starting = True
        self.exit_code: int | None = None

    def __enter__(self) -> _Signals:
        numbers = (signal.SIGTERM, signal.SIGINT)
        self._previous = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        if self.exit_code is None:
            self.exit_code = 130 if number == signal.SIGINT else 0
        self.stopped.set()
        if self.is_starting:
            self.is_starting = False
            raise _EndedAtStart(self.exit_code)


def _server(folders: dict[str, Path], chosen: argparse.Namespace, tls: Tls | None) -> ModelServer:
    from tfdist.config.validation import addresses_in
    from tfdist.serving.model_server.models import Serving
    from tfdist.serving.model_server.server import Listening, ModelServer

    tables = (
        ()
        if chosen.tables is None
        else addresses_in(chosen.tables, "--tables", "servers of tables")
    )
    return ModelServer(
        folders,
        functools.partial(
            _load,
            waits_until=time.monotonic() + chosen.tables_wait,
            cache_rows=chosen.cache_rows,
            cache_seconds=chosen.cache_seconds,
        ),
        Serving(
            tables=tables,
            kept=chosen.versions,
            max_batch=chosen.max_batch,
            batch_delay=chosen.batch_delay / 1e3,
            period=chosen.poll,
        ),
        Listening(
            host=chosen.host,
            port=chosen.port,
            rest_port=chosen.rest_port,
            max_bytes=chosen.max_request * _MEGABYTE,
            max_json_bytes=chosen.max_json * _MEGABYTE,
            threads=chosen.threads,
            tls=tls,
            wants_certificates=chosen.client_certificates,
        ),
    )


def _load(folder: str, tables: Sequence[str], waits_until: float, **cache: Any) -> Any:
    """Loads a SavedModel; its lookups go to servers of its tables, if it has any."""
    import tensorflow as tf

    from tfdist.ps.export.served_models import ServedModelFile
    from tfdist.serving.load import load

    if not ServedModelFile.is_in(folder):
        return tf.saved_model.load(folder)
    if not tables:
        raise ValueError(f"{folder}: the model's tables are on servers; expected --tables")
    # Later it is tried again at each look.
    return load(folder, tables, wait=max(0.0, waits_until - time.monotonic()), **cache)


def _serve(
    server: ModelServer, signals: _Signals, chosen: argparse.Namespace, tls: Tls | None
) -> int:
    """Waits for a signal, and closes the server; returns the exit code."""
    host = chosen.host
    at = f"[{host}]" if ":" in host else host
    scheme = "http" if tls is None else "https"
    for name, version in server.versions():
        print(f"tfdist serve: model {name}, version {version}", flush=True)
    print(
        f"tfdist serve: gRPC at {at}:{server.port}, REST at {scheme}://{at}:{server.rest_port}",
        flush=True,
    )
    signals.stopped.wait()
    signals.stopped.clear()  # a second signal ends the drain
    server.close(chosen.drain, signals.stopped)
    return signals.exit_code or 0


def _named_folder(text: str) -> tuple[str, Path]:
    """Parses a folder with or without a name; an argparse type."""
    found = _NAMED.fullmatch(text)
    if found is None:
        _refuse("a folder", text)
    folder = Path(found["folder"])
    name = found["name"] or folder.resolve().name
    if not name or re.search("[/:]", name):
        _refuse("NAME=FOLDER, with a name without '/' and ':'", text)
    return name, folder


def _numeric(text: str) -> str:
    """Parses a numeric address; an argparse type."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        _refuse("a numeric address, such as 127.0.0.1", text)


def _refuse(expected: str, received: str) -> NoReturn:
    raise argparse.ArgumentTypeError(f"expected {expected}, received {received!r}")
