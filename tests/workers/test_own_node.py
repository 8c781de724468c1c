"""A coordinator in a container of its own reaches the cluster through a node that it starts."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.chaos import network

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
