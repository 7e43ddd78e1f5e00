"""Requests per second of `tfdist serve`, beside the model in one process and beside Ray Serve.

    python benchmarks/serving.py [--clients 8] [--rows 1] [--seconds 4] [--rounds 3]
                                 [--ray_python .venv-ray/bin/python] [--json FILE]

A dense network (64, 256, 256, 1) as a SavedModel. Each client asks again as soon as it is answered,
in a thread of its own; requests are made before, and answers are not decoded:

    in process      as many threads call the SavedModel's signature: no network, no messages
    tfdist, gRPC    Predict
    tfdist, batches the same with --max-batch 64
    tfdist, REST    :predict
    Ray, gRPC       the same Predict, by a replica of Ray Serve that decodes the message with
                    TensorFlow and calls the signature
    Ray, batches    the same with `@serve.batch` of 64 rows and 5 ms
    Ray, HTTP       the same JSON as :predict, by a handler of that replica

All servers run, and one is asked at a time, in turns over the rounds; all clients are in one
process. Before they are timed, the answers are compared with the model's. Ray needs `ray[serve]`,
TensorFlow and tensorflow-serving-api in an environment of its own; without it its rows are left
out.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from absl import app, flags
from reporting import charts, results

CLIENTS = flags.DEFINE_integer("clients", 8, "that ask at a time", lower_bound=1)
ROWS = flags.DEFINE_integer("rows", 1, "of a request", lower_bound=1)
SECONDS = flags.DEFINE_float("seconds", 4.0, "of each measurement", lower_bound=0.5)
ROUNDS = flags.DEFINE_integer("rounds", 3, "of each implementation", lower_bound=1)
RAY = flags.DEFINE_string("ray_python", ".venv-ray/bin/python", "Python that has Ray Serve")
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

METHOD = "/tensorflow.serving.PredictionService/Predict"
PATH = "/v1/models/dense:predict"
FEATURES, HIDDEN = 64, 256
TIMEOUT = 120.0  # s
# Its proxy imports TensorFlow for the messages, and may take longer than Ray waits by default.
RAY_VARIABLES = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120", "RAY_AUTH_MODE": "disabled"}
RAY_PROGRAM = Path(__file__).parent / "baselines" / "ray_serving.py"

Ask = Callable[[], Any]
# Opens a client, and closes it at the end.
Open = Callable[[], contextlib.AbstractContextManager[Ask]]


class Requests:
    """A request in each form, and the right answer.

    Args:
      folder: of the SavedModel.
    """

    def __init__(self, folder: Path) -> None:
        import numpy as np
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        self.x = np.random.default_rng(1).random([ROWS.value, FEATURES], np.float32)
        self.signature = tf.saved_model.load(str(folder)).signatures["serving_default"]
        self.y = self.signature(x=tf.constant(self.x))["y"].numpy()
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "dense"
        request.inputs["x"].CopyFrom(tf.make_tensor_proto(self.x))
        self.message = request.SerializeToString()
        self.json = json.dumps({"inputs": self.x.tolist()}).encode()

    def check(self, name: str, values: Any) -> None:
        """Raises an error unless an answer is the model's."""
        import numpy as np

        np.testing.assert_allclose(
            np.reshape(values, self.y.shape), self.y, rtol=1e-4, err_msg=name
        )


def write_model(folder: Path) -> None:
    """Writes the SavedModel."""
    import tensorflow as tf

    class Dense(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            draws = tf.random.Generator.from_seed(1)
            sizes = ((FEATURES, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 1))
            self.kernels = [tf.Variable(draws.normal(size) / size[0] ** 0.5) for size in sizes]

        @tf.function(input_signature=[tf.TensorSpec([None, FEATURES], tf.float32, "x")])
        def serve(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            for kernel in self.kernels[:-1]:
                x = tf.nn.relu(x @ kernel)
            return {"y": x @ self.kernels[-1]}

    model = Dense()
    tf.saved_model.save(model, str(folder / "1"), signatures={"serving_default": model.serve})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Server:
    """A program that serves until it is closed.

    Args:
      command: starts it.
      ready: a part of the line with which it says that it is ready.
      variables: of its environment.
    """

    def __init__(self, command: list[str], ready: str, **variables: str) -> None:
        self._command, self._ready = command, ready
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **variables},
        )

    def wait(self) -> None:
        """Waits until it is ready."""
        assert self._process.stdout is not None
        if not any(self._ready in line for line in self._process.stdout):
            self._errors.seek(0)
            raise RuntimeError(f"{' '.join(self._command)}: {self._errors.read()[-2000:]}")

    def close(self) -> None:
        """Ends it."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(TIMEOUT)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


def grpc_clients(requests: Requests, port: int, application: str = "") -> Open:
    """Clients of gRPC, each with a connection of its own; `application` is Ray's."""
    import grpc
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    @contextlib.contextmanager
    def client() -> Iterator[Ask]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            call = channel.unary_unary(METHOD)
            metadata = (("application", application),) if application else ()
            yield lambda: call(requests.message, metadata=metadata, timeout=TIMEOUT)

    with client() as ask:
        answer = predict_pb2.PredictResponse.FromString(ask())
    requests.check("gRPC", tf.make_ndarray(answer.outputs["y"]))
    return client


def http_clients(requests: Requests, port: int, path: str = PATH) -> Open:
    """Clients of HTTP, each with a connection of its own."""

    @contextlib.contextmanager
    def client() -> Iterator[Ask]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        with contextlib.closing(connection):

            def ask() -> bytes:
                headers = {"Content-Type": "application/json"}
                connection.request("POST", path, requests.json, headers)
                answer = connection.getresponse()
                body = answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"{answer.status}: {body[:500]!r}")
                return body

            yield ask

    with client() as ask:
        requests.check("HTTP", json.loads(ask())["outputs"])
    return client


def in_process(requests: Requests) -> Open:
    """Clients that call the model themselves."""
    import tensorflow as tf

    def ask() -> Any:
        return requests.signature(x=tf.constant(requests.x))["y"].numpy()

    return lambda: contextlib.nullcontext(ask)


def started(stack: contextlib.ExitStack, requests: Requests, folder: Path) -> dict[str, Open]:
    """Starts all servers; returns their clients."""
    ports = {name: (free_port(), free_port()) for name in ("alone", "batches", "Ray")}
    servers = []

    def start(command: list[str], ready: str, **variables: str) -> None:
        servers.append(Server(command, ready, **variables))
        stack.callback(servers[-1].close)

    for name, options in (("alone", []), ("batches", ["--max-batch", "64"])):
        at = ["--port", str(ports[name][0]), "--rest-port", str(ports[name][1])]
        own = [sys.executable, "-m", "tfdist", "serve", str(folder)]
        start([*own, *at, *options], "gRPC at")
    if Path(RAY.value).exists():
        command = [RAY.value, str(RAY_PROGRAM), str(folder / "1"), *map(str, ports["Ray"])]
        start(command, "ready", PYTHONPATH="", **RAY_VARIABLES)
    for server in servers:
        server.wait()
    clients = {
        "in process": in_process(requests),
        "tfdist, gRPC": grpc_clients(requests, ports["alone"][0]),
        "tfdist, batches": grpc_clients(requests, ports["batches"][0]),
        "tfdist, REST": http_clients(requests, ports["alone"][1]),
    }
    if Path(RAY.value).exists():
        clients["Ray, gRPC"] = grpc_clients(requests, ports["Ray"][0], "plain")
        clients["Ray, batches"] = grpc_clients(requests, ports["Ray"][0], "batched")
        clients["Ray, HTTP"] = http_clients(requests, ports["Ray"][1], "/plain")
    return clients


def measured(open_client: Open) -> tuple[float, list[float]]:
    """Lets all clients ask for some seconds; returns the requests per second, and their times."""
    times: list[list[float]] = []
    together = threading.Barrier(CLIENTS.value)
    errors: list[Exception] = []

    def ask_on() -> None:
        own: list[float] = []
        times.append(own)
        try:
            with open_client() as ask:
                for _ in range(20):
                    ask()
                together.wait(TIMEOUT)
                ends = time.perf_counter() + SECONDS.value
                while (begun := time.perf_counter()) < ends:
                    ask()
                    own.append(time.perf_counter() - begun)
        except Exception as error:
            together.abort()
            errors.append(error)

    clients = [threading.Thread(target=ask_on) for _ in range(CLIENTS.value)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    if errors:
        raise errors[0]
    together_times = sorted(sum(times, []))
    return len(together_times) / SECONDS.value, together_times


def quantile(times: list[float], share: float) -> float:
    """Returns a quantile of sorted times in milliseconds."""
    return times[min(len(times) - 1, int(share * len(times)))] * 1e3


def measure(folder: Path) -> list[dict[str, Any]]:
    requests = Requests(folder / "1")
    with contextlib.ExitStack() as stack:
        clients = started(stack, requests, folder)
        print("all servers are ready", file=sys.stderr, flush=True)
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in clients}
        for _ in range(ROUNDS.value):
            for name, open_client in clients.items():
                rate, times = measured(open_client)
                print(f"{name}: {rate:.0f}/s", file=sys.stderr, flush=True)
                found[name].append((rate, quantile(times, 0.5), quantile(times, 0.99)))
    return [
        {
            "name": name,
            "requests_per_second": statistics.median(rate for rate, _, _ in rounds),
            "p50_ms": statistics.median(p50 for _, p50, _ in rounds),
            "p99_ms": statistics.median(p99 for _, _, p99 in rounds),
            "rounds": rounds,
        }
        for name, rounds in found.items()
    ]


def show(rows: list[dict[str, Any]]) -> None:
    print(
        f"\n{CLIENTS.value} clients, {ROWS.value} rows a request, median of {ROUNDS.value} rounds\n"
    )
    print(f"{'':>16} {'requests/s':>11} {'p50 (ms)':>9} {'p99 (ms)':>9}")
    for row in rows:
        print(
            f"{row['name']:>16} {row['requests_per_second']:11.0f} {row['p50_ms']:9.2f} "
            f"{row['p99_ms']:9.2f}"
        )
    if not Path(RAY.value).exists():
        print(f"\nwithout Ray: there is no {RAY.value}")


def draw(file: Path, rows: list[dict[str, Any]]) -> None:
    groups = {"a dense network": {row["name"]: row["requests_per_second"] for row in rows}}
    charts.bars(file, f"Serving, {CLIENTS.value} clients", "requests per second", groups)


def main(argv: list[str]) -> None:
    del argv
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "dense")
        write_model(folder)
        rows = measure(folder)
    show(rows)
    figures = {"clients": CLIENTS.value, "rows_a_request": ROWS.value, "rows": rows}
    results.save(JSON.value, figures, lambda file: draw(file, rows))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
