"""A Chromium without a window, told what to do over a pipe by the DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.patience import PATIENCE

_TIMEOUT = 60.0


class Tab:
    """A page of the browser.

    Args:
      to_browser, from_browser: the ends of its pipes.
      width, height: of the page, in pixels.
      dark: whether it prefers dark colours.

    Attributes:
      console: the errors that the page has reported.
    """

    def __init__(
        self, to_browser: int, from_browser: int, width: int, height: int, dark: bool
    ) -> None:
        self.console: list[str] = []
        self._to, self._from = to_browser, from_browser
        self._received = b""
        self._number = 0
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self._call("Page.enable")
        self._call("Log.enable")
        self._call("Runtime.enable")
        sizes = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **sizes)
        self._call("Emulation.setScrollbarsHidden", hidden=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Begins to load an address."""
        self._call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """Returns the value of an expression of JavaScript."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_until(self, expression: str) -> None:
        """Waits until an expression is true."""
        deadline = time.monotonic() + _TIMEOUT * PATIENCE
        while not self.value(expression):
            shown = self.value("document.body.innerText")
            assert time.monotonic() < deadline, f"never: {expression}; the page: {shown}"
            time.sleep(0.05)

    def screenshot(self, file: Path) -> None:
        """Writes a picture of the whole page."""
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        request: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            request["sessionId"] = self._session
        os.write(self._to, json.dumps(request).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.console.append(json.dumps(event["params"]))

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + _TIMEOUT * PATIENCE
        while b"\0" not in self._received:
            ready = select.poll()
            ready.register(self._from, select.POLLIN)
            left = max(0.0, deadline - time.monotonic())
            assert ready.poll(1000 * left), "the browser does not answer"
            part = os.read(self._from, 65536)
            assert part, "the browser has ended"
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


@contextlib.contextmanager
def tab(profile: Path, width: int, height: int = 900, dark: bool = False) -> Iterator[Tab]:
    """Starts a browser with one page; ends it at the end of a `with` block.

    Args:
      profile: a new directory for the browser.
      width, height: of the page, in pixels.
      dark: whether it prefers dark colours.
    """
    their_input, to_browser = os.pipe()
    from_browser, their_output = os.pipe()
    # The browser reads requests from descriptor 3, and writes answers to descriptor 4.
    command = (
        "exec chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage "
        f'--user-data-dir="$0" --remote-debugging-pipe 3<&{their_input} 4>&{their_output}'
    )
    process = subprocess.Popen(
        ["bash", "-c", command, str(profile)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(their_input, their_output),
    )
    os.close(their_input)
    os.close(their_output)
    try:
        yield Tab(to_browser, from_browser, width, height, dark)
    finally:
        process.terminate()
        process.wait(_TIMEOUT)
        os.close(to_browser)
        os.close(from_browser)
