"""A second node beside the local Ray cluster of this process, on the same machine."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from recommender.hardware import HardwareProfile
from workers.offer import join_command
from workers.ray_cluster import ClusterNode, nodes

NODE_TIMEOUT_S = 600.0


@contextmanager
def node_beside(hardware: HardwareProfile, *, devices: int, cpus: int) -> Iterator[ClusterNode]:
    """Yield a node that offers ``hardware`` to the cluster that this process is in."""
    import ray

    before = {node.key for node in nodes()}
    address = ray.get_runtime_context().gcs_address
    command = join_command(hardware, address, devices=devices, cpus=cpus, node_ip=None)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + NODE_TIMEOUT_S
        while not (new := [n for n in nodes() if n.key not in before]):
            assert time.monotonic() < deadline
            assert process.poll() is None, "the second node did not start"
            time.sleep(0.1)
        yield new[0]
    finally:
        process.terminate()
        process.wait()
