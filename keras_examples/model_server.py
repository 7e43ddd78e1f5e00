"""A model behind `tfdist serve`, and a new version of it while clients ask.

    pip install "tensorflow-serving-api>=2.16,<3" "tensorflow==2.21.*"    # your TensorFlow
    python keras_examples/model_server.py --output /tmp/model_server

prints, on two cores in less than a minute, with other numbers:

    users 500, films 300, 20000 ratings
    tfdist serve: model dense, version 1
    tfdist serve: model features, version 1
    tfdist serve: gRPC at 127.0.0.1:41237, REST at http://127.0.0.1:35081
    version 1: both halves together agree with model.predict, by gRPC and by REST
    version 2 answers; 1234 requests, 0 failed

The model is cut in two, as large models are served: `features` turns ids into vectors, next to the
tables, and `dense` turns vectors into a score. Either half can be served elsewhere, `dense` for
example by TensorFlow Serving on a GPU: the client stays the same, except for the address.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import keras
import numpy as np
import tensorflow as tf
from common import SEED
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

USERS, FILMS, RATINGS = 500, 300, 20_000
TIMEOUT = 60.0  # s


class Half:
    """Writes the versions of a part of the model.

    Args:
      model: the part.
      folder: has a folder for each version.
    """

    def __init__(self, model: keras.Model, folder: Path) -> None:
        self._model, self._folder = model, folder

    def write(self, version: int) -> None:
        """Writes a version beside the others, and gives it its number when it is complete."""
        arriving = self._folder.parent / f"arriving-{self._folder.name}"
        self._model.export(str(arriving), verbose=False)
        self._folder.mkdir(parents=True, exist_ok=True)
        arriving.rename(self._folder / str(version))


def make_models() -> tuple[keras.Model, keras.Model, keras.Model]:
    """Returns the half with the tables, the dense half, and the whole model."""
    user = keras.Input((), dtype="int64", name="user")
    film = keras.Input((), dtype="int64", name="film")
    vectors = keras.layers.Concatenate()(
        [keras.layers.Embedding(USERS, 16)(user), keras.layers.Embedding(FILMS, 16)(film)]
    )
    features = keras.Model({"user": user, "film": film}, vectors, name="features")
    given = keras.Input((32,), name="vectors")
    hidden = keras.layers.Dense(32, activation="relu")(given)
    dense = keras.Model(given, keras.layers.Dense(1, activation="sigmoid")(hidden), name="dense")
    return features, dense, keras.Model(features.input, dense(vectors))


def ratings() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Draws users, films, and whether the user likes the film: a synthetic rule of both."""
    draws = np.random.default_rng(SEED)
    user, film = draws.integers(USERS, size=RATINGS), draws.integers(FILMS, size=RATINGS)
    likes = draws.normal(size=[USERS, 4])[user] * draws.normal(size=[FILMS, 4])[film]
    return {"user": user, "film": film}, (likes.sum(1) > 0).astype("float32")


@contextmanager
def server(*folders: Path) -> Iterator[tuple[str, str]]:
    """Runs `tfdist serve`; gives its addresses of gRPC and of REST."""
    command = [sys.executable, "-m", "tfdist", "serve", "--port", "0", "--rest-port", "0"]
    process = subprocess.Popen(
        [*command, *map(str, folders)], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if "gRPC at" in line:
                words = line.split()
                yield words[4].rstrip(","), words[-1]
                break
        else:
            raise SystemExit("the server has not started: see its message above")
    finally:
        process.terminate()
        process.wait(TIMEOUT)


class Client:
    """Asks both halves by gRPC, as a client of TensorFlow Serving does.

    Args:
      address: of the server.
    """

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def score(self, ids: dict[str, np.ndarray]) -> tuple[np.ndarray, int]:
        """Returns the scores of some users and films, and the version of the dense half."""
        vectors, _ = self._ask("features", ids)
        return self._ask("dense", {"vectors": vectors})

    def _ask(self, model: str, inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, int]:
        request = predict_pb2.PredictRequest()
        request.model_spec.name = model
        for name, values in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
        response = self._stub.Predict(request, timeout=TIMEOUT)
        (output,) = response.outputs.values()
        return tf.make_ndarray(output), response.model_spec.version.value

    def close(self) -> None:
        self._channel.close()


def score_by_rest(address: str, ids: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the same scores, asked by REST."""

    def ask(model: str, inputs: object) -> object:
        body = json.dumps({"inputs": inputs}).encode()
        with urllib.request.urlopen(f"{address}/v1/models/{model}:predict", body, TIMEOUT) as got:
            return json.loads(got.read())["outputs"]

    return np.array(ask("dense", ask("features", {n: v.tolist() for n, v in ids.items()})))


class Asking:
    """A client that asks until it is told to stop, in a thread of its own.

    Args:
      client: asks.
      ids: of the request.

    Attributes:
      versions: of the answers, in order.
      failed: the requests without an answer.
    """

    def __init__(self, client: Client, ids: dict[str, np.ndarray]) -> None:
        self.versions: list[int] = []
        self.failed = 0
        self._client, self._ids = client, ids
        self._new, self._stopped = threading.Condition(), threading.Event()
        self._thread = threading.Thread(target=self._ask_on)
        self._thread.start()

    def wait_for(self, version: int) -> None:
        """Waits until a version has answered; raises TimeoutError after a minute."""
        with self._new:
            if not self._new.wait_for(lambda: version in self.versions, TIMEOUT):
                raise TimeoutError(f"version {version} does not answer")

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        self._thread.join()

    def _ask_on(self) -> None:
        while not self._stopped.is_set():
            try:
                _, version = self._client.score(self._ids)
            except grpc.RpcError as error:
                print(error, file=sys.stderr)
                self.failed += 1
                continue
            with self._new:
                self.versions.append(version)
                self._new.notify_all()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="new folder for the models")
    chosen = parser.parse_args()
    if chosen.output.exists():
        parser.error(f"--output: expected a new folder, received {chosen.output}")
    keras.utils.set_random_seed(SEED)
    features, dense, whole = make_models()
    x, y = ratings()
    print(f"users {USERS}, films {FILMS}, {RATINGS} ratings")
    whole.compile("adam", "binary_crossentropy")
    whole.fit(x, y, batch_size=500, epochs=1, verbose=0)
    halves = [Half(part, chosen.output / part.name) for part in (dense, features)]
    for half in halves:
        half.write(1)
    some = {name: values[:4] for name, values in x.items()}
    with server(chosen.output / "dense", chosen.output / "features") as (grpc_at, rest_at):
        client = Client(grpc_at)
        expected = whole.predict(some, verbose=0)
        for scores in (client.score(some)[0], score_by_rest(rest_at, some)):
            np.testing.assert_allclose(scores, expected, atol=1e-5)
        print("version 1: both halves together agree with model.predict, by gRPC and by REST")
        asking = Asking(client, some)
        try:
            # The tables stay, so that clients may have any version of the dense half.
            features.trainable = False
            whole.compile("adam", "binary_crossentropy")
            whole.fit(x, y, batch_size=500, epochs=1, verbose=0)
            halves[0].write(2)
            asking.wait_for(2)
        finally:
            asking.stop()
        scores, _ = client.score(some)
        np.testing.assert_allclose(scores, whole.predict(some, verbose=0), atol=1e-5)
        print(f"version 2 answers; {len(asking.versions)} requests, {asking.failed} failed")
        client.close()


if __name__ == "__main__":
    main()
