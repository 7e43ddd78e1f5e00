"""Ray Serve with one replica of a SavedModel, for benchmarks/serving.py.

    python ray_serving.py FOLDER GRPC_PORT HTTP_PORT

Prints "ready" when it answers, and serves until SIGTERM. It takes the same messages and the same
JSON as `tfdist serve`: the application "plain" answers each request alone, "batched" joins them.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from typing import Any

import ray
from ray import serve
from ray.serve.config import HTTPOptions, gRPCOptions

FOLDER, GRPC_PORT, HTTP_PORT = sys.argv[1:4]
ADD = "tensorflow_serving.apis.prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server"


class Served:
    """The SavedModel, and both forms of a request."""

    def __init__(self, folder: str) -> None:
        import tensorflow as tf

        self.signature = tf.saved_model.load(folder).signatures["serving_default"]

    def _call(self, x: Any) -> Any:
        import tensorflow as tf

        return self.signature(x=tf.constant(x))["y"].numpy()

    def Predict(self, request: Any) -> Any:
        """Answers gRPC's Predict."""
        import tensorflow as tf

        return _response(self._call(tf.make_ndarray(request.inputs["x"])))

    async def __call__(self, request: Any) -> Any:
        """Answers HTTP."""
        import numpy as np

        x = np.array(json.loads(await request.body())["inputs"], np.float32)
        return {"outputs": self._call(x).tolist()}


class Batched(Served):
    """Joins requests, as Ray's documentation shows it."""

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.005)
    async def joined(self, inputs: list[Any]) -> list[Any]:
        """Calls the model once."""
        import numpy as np

        y = self._call(np.concatenate(inputs))
        return np.split(y, np.cumsum([len(x) for x in inputs])[:-1])

    async def Predict(self, request: Any) -> Any:
        """Answers gRPC's Predict."""
        import tensorflow as tf

        return _response(await self.joined(tf.make_ndarray(request.inputs["x"])))


def _response(y: Any) -> Any:
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    response = predict_pb2.PredictResponse()
    response.outputs["y"].CopyFrom(tf.make_tensor_proto(y))
    return response


def main() -> None:
    stopped = threading.Event()
    ray.init(include_dashboard=False, log_to_driver=False, num_cpus=2)
    # Ray's own handler ends the program without its processes.
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    serve.start(
        http_options=HTTPOptions(host="127.0.0.1", port=int(HTTP_PORT)),
        grpc_options=gRPCOptions(port=int(GRPC_PORT), grpc_servicer_functions=[ADD]),
    )
    for name, kind in (("plain", Served), ("batched", Batched)):
        deployment = serve.deployment(kind, name=name, num_replicas=1, max_ongoing_requests=100)
        # Each replica may use the whole machine, as tfdist's servers may.
        replica = deployment.options(ray_actor_options={"num_cpus": 0.1}).bind(FOLDER)
        serve.run(replica, name=name, route_prefix=f"/{name}")
    print("ready", flush=True)
    stopped.wait()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
