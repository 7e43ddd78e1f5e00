"""The model server: both protocols in front of the same models."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from pathlib import Path

from tfdist.config.tls import Tls
from tfdist.serving.model_server.grpc_server import GrpcServer
from tfdist.serving.model_server.http_server import HttpServer
from tfdist.serving.model_server.messages import Services
from tfdist.serving.model_server.meters import Meters
from tfdist.serving.model_server.models import Models, Serving
from tfdist.serving.model_server.rest import Rest
from tfdist.serving.model_server.saved_model import Loader
from tfdist.serving.model_server.versions import State

# Seconds in which requests in progress are answered at the end.
_GRACE = 10.0


@dataclasses.dataclass(frozen=True)
class Listening:
    """Where and how a server listens.

    Args:
      host: the numeric address.
      port: of gRPC; 0 for a free one.
      rest_port: of HTTP; 0 for a free one.
      max_bytes: of a request.
      max_json_bytes: of one by HTTP: others wait while Python reads JSON.
      threads: requests of gRPC that are answered at a time.
      max_calls: requests of gRPC that are answered or wait.
      tls: the origin of the server's certificate; None does not encrypt.
      wants_certificates: whether clients need a certificate of the same authority.
    """

    host: str = "127.0.0.1"
    port: int = 0
    rest_port: int = 0
    max_bytes: int = 256 << 20
    max_json_bytes: int = 32 << 20
    threads: int = 32
    max_calls: int = 1000
    tls: Tls | None = None
    wants_certificates: bool = False


class ModelServer:
    """Serves models until closed.

    It listens first, and is ready when all models are loaded: they may have to wait for the servers
    of their tables.

    Args:
      folders: the folder of each model by its name; each version is a folder named by a number.
      loader: reads a SavedModel.
      serving: how models are served.
      listening: where and how it listens.

    Attributes:
      port: of gRPC.
      rest_port: of HTTP.

    Raises:
      NoModelError: a folder has no version that can be loaded.
      AddressInUseError: a port cannot be used.
      ClusterConfigError: the certificate cannot be used.
    """

    def __init__(
        self,
        folders: Mapping[str, Path],
        loader: Loader,
        serving: Serving,
        listening: Listening,
    ) -> None:
        meters = Meters()
        self._is_ending = threading.Event()
        self._models = Models(folders, loader, serving, meters)
        meters.follow(self.versions)
        try:
            self._grpc = GrpcServer(
                Services(self._models).methods(),
                self.is_ready,
                listening.host,
                listening.port,
                max_bytes=listening.max_bytes,
                threads=listening.threads,
                max_calls=listening.max_calls,
                tls=listening.tls,
                wants_certificates=listening.wants_certificates,
            )
        except BaseException:
            self._models.close()
            raise
        try:
            self._http = HttpServer(
                Rest(self._models),
                self.is_ready,
                self._is_ending.is_set,
                meters.text,
                listening.host,
                listening.rest_port,
                max_bytes=min(listening.max_bytes, listening.max_json_bytes),
                tls=listening.tls,
                wants_certificates=listening.wants_certificates,
            )
        except BaseException:
            self._grpc.close(0)
            self._models.close()
            raise
        self.port, self.rest_port = self._grpc.port, self._http.port
        try:
            self._models.begin()
        except BaseException:
            self._is_ending.set()
            self._http.close(0)
            self._grpc.close(0)
            self._models.close()
            raise

    def is_ready(self) -> bool:
        """Whether each model has a version that answers requests, and the server stays."""
        served = {name for name, _ in self.versions()}
        return not self._is_ending.is_set() and served == set(self._models.names())

    def versions(self) -> list[tuple[str, int]]:
        """Returns the name of each model with each of its available versions."""
        return [
            (name, state.version)
            for name in self._models.names()
            for state in self._models.states(name)
            if state.state is State.AVAILABLE
        ]

    def close(self, drain: float = 0.0, hurry: threading.Event | None = None) -> None:
        """Is not ready any more, answers the requests in progress, and frees the models.

        Args:
          drain: seconds in which it still answers new requests, so that load balancers can see that
            it is not ready and send them elsewhere.
          hurry: ends that time when it is set.
        """
        self._is_ending.set()
        if drain:
            (hurry or threading.Event()).wait(drain)
        self._grpc.close(_GRACE)
        self._http.close(_GRACE)
        self._models.close()
