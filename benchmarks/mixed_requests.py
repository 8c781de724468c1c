"""Requests of every kind to a service, from several clients at once: what users do in a day."""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

Reply = tuple[int, bytes]
MEASURED_N, COLD_N = 512, 768


class Client:
    """One connection with a key; reconnects where the server closed it."""

    def __init__(self, port: int, key: str, seed: int, first_row: int, measured: int) -> None:
        self._port, self._key = port, key
        self._connection: http.client.HTTPConnection | None = None
        self.rng = random.Random(seed)
        self._first_row, self._measured = first_row, measured
        self._cold = seed * 10_000  # each client asks cold questions of its own
        self.codes: Counter[int] = Counter()

    def send(self, method: str, path: str, body: Any = None, key: str | None = None) -> Reply:
        """Return status and body of the answer."""
        headers = {"Authorization": f"Bearer {self._key if key is None else key}"}
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        for _ in range(2):
            if self._connection is None:
                self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
            try:
                self._connection.request(method, path, data, headers)
                answer = self._connection.getresponse()
                content = answer.read()
            except (http.client.HTTPException, OSError):
                self._connection.close()
                self._connection = None
                continue
            self.codes[answer.status] += 1
            return answer.status, content
        self.codes[0] += 1
        return 0, b""

    def ask(self) -> str:
        """Send one request (or the few of one errand) of a random kind and return its name."""
        names, weights = zip(*KINDS.items(), strict=True)
        name = str(self.rng.choices(names, weights)[0])
        DEEDS[name](self)
        return name

    # --- the kinds ----------------------------------------------------------------------------

    def cached(self) -> None:
        self._recommend(self.rng.randrange(32, 64), MEASURED_N)

    def measured(self) -> None:
        self._recommend(self._first_row + self.rng.randrange(self._measured), MEASURED_N)

    def cold(self) -> None:
        self._cold += 1
        self._recommend(1 + self._cold, COLD_N)

    def device(self) -> None:
        problem = {"m": 64 * self.rng.randrange(1, 9), "n": 1024, "k": 1024, "dtype": "float16"}
        body = {"kernel": "gemm", "problem": problem, "hardware": "H100"}
        self.send("POST", "/v1/recommendations", body)

    def _recommend(self, m: int, n: int) -> None:
        body = {"kernel": "gemm", "problem": {"m": m, "n": n, "k": 1024}, "top_k": 5}
        self.send("POST", "/v1/recommendations", body)

    def page(self) -> None:
        filters = [
            "kernel=gemm", f"m={self._first_row + self.rng.randrange(self._measured)}", "status=OK",
            "protocol=confirm", "best=true", "limit=20", "best_per=workload", "created_by=nobody",
            f"since=2026-0{self.rng.randrange(1, 10)}-01T00:00:00Z",
        ]  # fmt: skip
        chosen = self.rng.sample(filters, self.rng.randrange(1, 5))
        self.send("GET", f"/v1/measurements?{'&'.join(chosen)}")

    def export(self) -> None:
        m = self._first_row + self.rng.randrange(self._measured)
        form = self.rng.choice(("csv", "t4"))
        self.send("GET", f"/v1/measurements/export?format={form}&m={m}")

    def catalog(self) -> None:
        paths = (
            "kernels",
            "kernels/gemm",
            "hardware",
            "hardware/h100",
            "nodes",
            "models",
            "studies",
        )
        self.send("GET", f"/v1/{self.rng.choice(paths)}")

    def health(self) -> None:
        self.send("GET", self.rng.choice(("/healthz", "/readyz", "/metrics")))

    def faulty(self) -> None:
        """Bad input of every kind, with names and keys that never come again."""
        number = self.rng.randrange(10**12)
        kind = self.rng.randrange(6)
        if kind == 0:
            self.send("POST", "/v1/recommendations", {"kernel": f"k{number}", "problem": {"m": 1}})
        elif kind == 1:
            self.send("POST", "/v1/recommendations", b'{"kernel": ')
        elif kind == 2:
            self.send("GET", f"/v1/nothing/{number}")
        elif kind == 3:
            self.send("GET", "/v1/kernels", key=f"tc_{number}")
        elif kind == 4:
            self.send("GET", f"/v1/measurements?cursor={number}")
        else:
            self.send("GET", f"/v1/tuning-runs/{number}")

    def run(self) -> None:
        """Queue a run, look at it, cancel it."""
        body = {"kernel": "gemm", "problem": {"m": self.rng.randrange(1, 999), "n": 64, "k": 64}}
        status, content = self.send("POST", "/v1/tuning-runs", body)
        if status == 202:
            url = f"/v1/tuning-runs/{json.loads(content)['id']}"
            self.send("POST", f"{url}:cancel")
            self.send("GET", f"{url}/events")
            self.send("GET", url)

    def study(self) -> None:
        """Tune a space that nobody else has by two trials."""
        size = self.rng.randrange(4, 4000)
        space = {"a": list(range(size % 61 + 2)), "b": list(range(size % 13 + 2))}
        body = {"name": "a study", "parameters": space, "max_trials": 4, "strategy": "random"}
        status, content = self.send("POST", "/v1/studies", body)
        if status != 201:
            return
        url = f"/v1/studies/{json.loads(content)['id']}"
        _, given = self.send("POST", f"{url}/trials:suggest", {"worker": "w", "count": 2})
        for trial in json.loads(given)["items"]:
            told = {"worker": "w", "repeats_us": [1.0, 1.1]}
            self.send("POST", f"{url}/trials/{trial['id']}:complete", told)
        self.send("POST", f"{url}:close")

    def keys(self) -> None:
        """Make a key, use it, revoke it."""
        status, content = self.send("POST", "/v1/keys", {"name": "passing", "role": "read"})
        if status == 201:
            made = json.loads(content)
            self.send("GET", "/v1/kernels", key=made["key"])
            self.send("POST", f"/v1/keys/{made['prefix']}:revoke")


KINDS = {
    "cached": 40, "measured": 4, "cold": 2, "device": 1, "page": 18, "export": 1, "catalog": 10,
    "health": 6, "faulty": 12, "run": 2, "study": 1, "keys": 1,
}  # fmt: skip
DEEDS: Mapping[str, Callable[[Client], None]] = {name: getattr(Client, name) for name in KINDS}


def drive(clients: list[Client], until: int, sent: Callable[[], int], kinds: Counter[str]) -> None:
    """Let the clients send until they have sent so many requests together."""

    def work(client: Client) -> None:
        while sent() < until:
            kinds[client.ask()] += 1

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
