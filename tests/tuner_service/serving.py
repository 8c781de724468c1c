"""An application on a port of its own, as processes and browsers meet it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from starlette import testclient

from tests.postgres import free_port
from tuner_service.settings import Settings
from tuner_service.web.server import Server

LOCAL = "127.0.0.1:8711"


class TestClient(testclient.TestClient):
    """Asks an application as clients on its machine do: under its usual name."""

    __test__ = False

    def __init__(self, app: FastAPI, **options: Any) -> None:
        super().__init__(app, **{"base_url": f"http://{LOCAL}", **options})


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Serve an application, and give its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def bounded(app: FastAPI, settings: Settings) -> Iterator[tuple[str, int]]:
    """Serve an application as ``tilecore serve`` does, in a thread; give its address."""
    server = Server(app, settings.model_copy(update={"port": 0, "log_level": "error"}))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[:2]
    finally:
        server.should_exit = True
        thread.join()


class ServiceProcess:
    """A process of ``tilecore serve``; what it writes to stderr is kept.

    Args:
        settings: of the service.
        before: Python that the process runs before it serves.
        options: of the command.
        port: that it listens on; None: a free one.
    """

    def __init__(
        self, settings: Settings, before: str = "", options: Sequence[str] = (),
        port: int | None = None,
    ) -> None:  # fmt: skip
        port = port or free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = settings.data_dir / f"serve-{port}.log"
        program = f"{before}\nfrom tuner_service.cli.app import main\nmain()"
        command = [sys.executable, "-c", program, "serve", "--port", str(port), *options]
        with self.log.open("wb") as stderr:
            self.process = subprocess.Popen(
                command, env=settings.environment(), stdout=subprocess.DEVNULL, stderr=stderr
            )
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def __enter__(self) -> ServiceProcess:
        deadline = time.monotonic() + 120
        while not self._is_ready():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _is_ready(self) -> bool:
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal."""
        self.process.send_signal(number)
