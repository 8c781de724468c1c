"""A coordinator in a container of its own reaches the cluster through a node that it starts."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from contextlib import suppress

import pytest

from tests.chaos import network
from workers.errors import ClusterUnavailable
from workers.offer import check_address

JOIN = """
import psutil, ray
from workers import ray_cluster
from workers.errors import ClusterUnavailable
try:
    ray_cluster.join("ADDRESS:1")
except ClusterUnavailable as error:
    print(error.code)
ray_cluster.join("ADDRESS:6379")
print(sorted((n["NodeManagerAddress"], n["Resources"].get("CPU", 0)) for n in ray.nodes()))
print(ray.get(ray.remote(lambda: "done").options(num_cpus=0).remote()), ray_cluster.nodes())
ray_cluster.leave()
print(sum(p.name() == "raylet" for p in psutil.process_iter()))
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(
    not network.works() or shutil.which("unshare") is None,
    reason="needs root and network namespaces",
)
def test_a_machine_without_a_node_joins_through_one_of_its_own():
    net = network.Network(["head", "other"])
    environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t" * 64}
    with net:
        address = net.address("head")
        start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--num-cpus=0"]
        start += ["--port=6379", "--block", "--disable-usage-stats", "--include-dashboard=false"]
        head = subprocess.Popen(
            net.on("head", [*start, "--node-ip-address", address]),
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            time.sleep(3)
            # A container: processes, temporary files and shared memory of its own.
            hide = "mount -t tmpfs none /tmp/ray && mount -t tmpfs none /dev/shm"
            code = textwrap.dedent(JOIN).replace("ADDRESS", address)
            inside = ["unshare", "--mount", "--pid", "--fork", "--mount-proc"]
            shell = ["sh", "-c", f'{hide} && exec "$0" -c "$CODE"', sys.executable]
            deadline = time.monotonic() + 120
            while True:
                done = subprocess.run(
                    net.on("other", [*inside, *shell]), env=environment | {"CODE": code},
                    capture_output=True, text=True, check=False, timeout=300,
                )  # fmt: skip
                if done.returncode == 0 or time.monotonic() > deadline:
                    break
                time.sleep(1)  # the head is not up yet
        finally:
            head.send_signal(signal.SIGTERM)
            head.wait()
    assert done.returncode == 0, done.stderr[-3000:]
    other = net.address("other")
    assert done.stdout.splitlines() == [
        "WK707",
        f"[('{address}', 0), ('{other}', 0)]",
        "done []",
        "0",
    ]


@pytest.mark.exhaustive
def test_a_cluster_that_takes_another_token_is_told_as_such():
    """Ray asked for a minute, and went on with a traceback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t" * 64}
    start = [sys.executable, "-m", "workers.node_process"]  # which leaves nothing behind
    start += [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--num-cpus=0"]
    start += [f"--port={address.partition(':')[2]}", "--node-ip-address=127.0.0.1", "--block"]
    start += ["--disable-usage-stats", "--include-dashboard=false"]
    head = subprocess.Popen(
        start, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            assert time.monotonic() < deadline
            with suppress(ClusterUnavailable):
                check_address(address)
                break
            time.sleep(0.1)
        worker = [sys.executable, "-m", "tuner_service", "worker", "--address", address]
        done = subprocess.run(
            worker, env=environment | {"RAY_AUTH_TOKEN": "u" * 64}, check=False,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    finally:
        head.send_signal(signal.SIGTERM)
        head.wait()
    told = [line for line in done.stderr.splitlines() if line.startswith(("error", "Traceback"))]
    assert told == [
        f"error: WK707 cluster-unavailable: expected a Ray cluster at {address}, "
        "found one that takes another token than that of this process"
    ]
    assert "RAY_AUTH_TOKEN" in done.stderr
    assert done.returncode == 1
