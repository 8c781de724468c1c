"""Tune a kernel of your own, in any language: you measure, the service says what to try next.

    tilecore serve &
    python examples/tune_your_own_kernel.py [URL]

The kernel here is a blocked transpose in NumPy; yours may be CUDA, Triton or C++. Start the script
several times at once: no configuration is measured twice. Where the service needs a key, set
TILECORE_KEY.
"""

import os
import socket
import sys
import time

import httpx
import numpy as np

N = 2048
STUDY = {
    "name": f"blocked transpose {N}",
    "parameters": {
        "rows": [8, 16, 32, 64, 128, 256, 512],
        "columns": [8, 16, 32, 64, 128, 256, 512],
        "order": ["rows first", "columns first"],
    },
    "conditions": ["rows * columns * 4 * 2 <= 1024 * 1024", "rows * columns >= 512"],
    "default": {"rows": 64, "columns": 64, "order": "rows first"},
    "max_trials": 30,
}


def transpose(a, out, rows, columns, order):
    """Write the transpose of ``a`` into ``out``, block by block."""
    starts = [(i, j) for i in range(0, N, rows) for j in range(0, N, columns)]
    if order == "columns first":
        starts.sort(key=lambda start: start[::-1])
    for i, j in starts:
        out[j : j + columns, i : i + rows] = a[i : i + rows, j : j + columns].T


def measure(config):
    """Return what to tell of a configuration: its times, or why it has none."""
    a = np.random.default_rng().random((N, N), np.float32)
    out = np.full((N, N), np.nan, np.float32)
    transpose(a, out, **config)
    if not np.array_equal(out, a.T):
        return {"failure": "wrong result"}
    repeats_us = []
    for _ in range(5):
        began = time.perf_counter()
        transpose(a, out, **config)
        repeats_us.append((time.perf_counter() - began) * 1e6)
    return {"repeats_us": repeats_us}


def main():
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8711"
    key = os.environ.get("TILECORE_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    worker = f"{socket.gethostname()}-{os.getpid()}"
    with httpx.Client(base_url=url, headers=headers, timeout=60) as service:
        # The key makes one study of all processes (and all starts) of this script on this host.
        made = service.post(
            "/v1/studies", json=STUDY, headers={"Idempotency-Key": f"transpose-{N}"}
        )
        made.raise_for_status()
        study = made.headers["Location"]
        while True:
            asked = service.post(f"{study}/trials:suggest", json={"worker": worker, "count": 2})
            asked.raise_for_status()
            trials = asked.json()["items"]
            if not trials:
                if service.get(study).json()["trials"].get("leased"):
                    time.sleep(0.5)  # others measure still; what they lose comes to us
                    continue
                break
            for trial in trials:
                told = {"worker": worker, **measure(trial["config"])}
                answer = service.post(f"{study}/trials/{trial['id']}:complete", json=told)
                if answer.status_code != 409:  # 409: it took too long, somebody else has it
                    answer.raise_for_status()
                print(trial["config"], answer.json().get("latency_us"))
        best = service.get(study).json()["best"]
        print("best:", best["config"], f"{best['latency_us']:.0f} us")


if __name__ == "__main__":
    try:
        main()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        sys.exit(f"the service cannot be used: {error}")
