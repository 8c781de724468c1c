"""A headless Chromium, driven through pipes by its DevTools protocol: nothing else is needed."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """Return the browser of this machine, None without one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page of a browser."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._buffer, self._number, self._session = b"", 0, None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.messages: list[str] = []  # of the console and the log, faults of the policy included
        self._call("Runtime.enable")
        self._call("Log.enable")

    def open(self, url: str) -> None:
        """Load an address and wait until it is there."""
        self._call("Page.navigate", url=url)
        self.wait("document.readyState == 'complete' && location.href != 'about:blank'")

    def resize(self, width: int, height: int) -> None:
        """Show pages as a phone of that size does."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str, timeout_s: float = 30.0) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + timeout_s
        while not self.ask(expression):
            assert time.monotonic() < end, (expression, self.ask("document.body.innerText"))
            time.sleep(0.05)

    def _call(self, method: str, **given: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": given}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            told = self._read()
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]
            if told.get("method") == "Log.entryAdded":
                self.messages.append(told["params"]["entry"]["text"])
            elif told.get("method") == "Runtime.exceptionThrown":
                self.messages.append(str(told["params"]["exceptionDetails"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._receive, 1 << 16)
            assert piece, "the browser ended"
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)


@contextlib.contextmanager
def opened(program: str) -> Iterator[Page]:
    """Yield a page of a browser that ends with the block. It reads from 3 and writes to 4."""
    own_read, its_write = os.pipe()
    its_read, own_write = os.pipe()
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        shell = f'exec "$@" 3<&{its_read} 4>&{its_write}'
        browser = subprocess.Popen(
            ["bash", "-c", shell, "bash", program, *flags, f"--user-data-dir={profile}"],
            pass_fds=(its_read, its_write),
            stderr=subprocess.DEVNULL,
        )
        os.close(its_read)
        os.close(its_write)
        try:
            yield Page(own_write, own_read)
        finally:
            browser.terminate()
            browser.wait(20)
            os.close(own_read)
            os.close(own_write)
