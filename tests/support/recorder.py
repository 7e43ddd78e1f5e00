"""A proxy that records every byte of the connections that pass through it."""

from __future__ import annotations

import contextlib
import socket
import threading


class Recorder:
    """Forwards TCP connections to `address` ("host:port") while it is open."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._recorded = bytearray()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def recorded(self) -> bytes:
        """The bytes of both directions so far."""
        with self._lock:
            return bytes(self._recorded)

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(self._target, timeout=30)
            for ends in ((client, server), (server, client)):
                for end in ends:
                    end.settimeout(None)
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                with self._lock:
                    self._recorded += part
                target.sendall(part)
            target.shutdown(socket.SHUT_WR)
