"""A server that takes the status of a TrainJob, as Kubeflow Trainer's status server does."""

from __future__ import annotations

import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfdist.config.trainjob import StatusServer

# A key and a certificate of its own for localhost and 127.0.0.1, of no use elsewhere.
CERTIFICATE = Path(__file__).parent / "localhost.pem"
PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/research/trainjobs/train/status"


class Received:
    """The requests so far: their paths, headers and statuses, and the answer to the next ones."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.headers: list[Any] = []
        self.statuses: list[dict[str, Any]] = []
        self.answer = 200


@contextlib.contextmanager
def status_server(folder: Path) -> Iterator[tuple[StatusServer, Received]]:
    """Serves on a free port; the token is in `folder`."""
    received = Received()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.paths.append(self.path)
            received.headers.append(self.headers)
            received.statuses.append(json.loads(body)["trainerStatus"])
            self.send_response(received.answer)
            self.end_headers()
            self.wfile.write(b'{"message": "Forbidden"}')

        def log_message(self, *arguments: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    token = folder / "token"
    token.write_text("ey.J0.k3n\n")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        url = f"https://127.0.0.1:{server.server_address[1]}{PATH}"
        try:
            yield StatusServer(url, str(CERTIFICATE), str(token)), received
        finally:
            server.shutdown()
            thread.join()
