"""A gRPC channel to one address, encrypted with the newest certificate of this task."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import grpc

from tfdist.config.tls import Tls

if TYPE_CHECKING:
    from tfdist.control.tls.authority import Material
    from tfdist.control.tls.credentials import Credentials

_Options = Sequence[tuple[str, object]]


class Channel:
    """A channel that connects on first use, and again after the connection breaks.

    gRPC's own channel keeps the certificate that it was made with. When this task's was renewed,
    calls go by a new channel, and those under way end in the old one.

    Args:
      address: the other task's "host:port".
      tls: the origin of this task's certificate; None does not encrypt.
      options: of gRPC.
    """

    def __init__(self, address: str, tls: Tls | None, options: _Options) -> None:
        # With an explicit scheme, no host name is parsed as one.
        self._target = f"dns:///{address}"
        self._options = options
        self._lock = threading.Lock()
        self._credentials: Credentials | None = None
        self._material: Material | None = None
        if tls is not None:
            from tfdist.control.tls.credentials import credentials_of  # needs an extra

            self._credentials = credentials_of(tls)
        self._former: grpc.Channel | None = None
        self._channel = self._new()
        self._calls: dict[str, grpc.UnaryUnaryMultiCallable] = {}  # by path
        self._closed = False

    def unary(self, path: str) -> grpc.UnaryUnaryMultiCallable:
        """Returns what calls a method, with bytes both ways; use it for one call."""
        with self._lock:
            if (
                self._credentials is not None
                and self._credentials.material is not self._material
                and not self._closed
            ):
                # The one before has had its calls until the last renewal.
                if self._former is not None:
                    self._former.close()
                self._former, self._channel = self._channel, self._new()
                self._calls = {}
            if path not in self._calls:
                self._calls[path] = self._channel.unary_unary(path)
            return self._calls[path]

    def close(self) -> None:
        """Closes the connection, and ends calls under way."""
        with self._lock:
            self._closed = True
            former = self._former
        if former is not None:
            former.close()
        self._channel.close()

    def _new(self) -> grpc.Channel:
        if self._credentials is None:
            return grpc.insecure_channel(self._target, options=self._options)
        from tfdist.control.tls.rpc import secure_channel

        self._material = self._credentials.material
        return secure_channel(
            self._target, self._options, self._material, self._credentials.fixed_name
        )
