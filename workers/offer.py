"""What a machine offers to a cluster, and the command that makes it join one. Needs no Ray."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence

from recommender.hardware import HardwareProfile, emulated, load_profile, profile_names
from workers.devices import gpu_devices
from workers.errors import ClusterUnavailable

RESOURCE_PREFIX = "hw:"
CONNECT_TIMEOUT_S = 5.0


def resource_name(hardware: HardwareProfile) -> str:
    """Return the custom resource that a node with this hardware offers."""
    return f"{RESOURCE_PREFIX}{hardware.key[:12]}"


def offered_here(resource: str) -> HardwareProfile | None:
    """Return the device of this machine that a resource names, None where it has no such thing.

    The emulator stands in for any GPU on any machine.
    """
    from workers.host import detect

    found = (detect(), *(d.hardware for d in gpu_devices()), *emulated_devices())
    return next((h for h in found if resource_name(h) == resource), None)


def emulated_devices() -> Sequence[HardwareProfile]:
    """Return the emulator in the place of every GPU that has a profile."""
    shipped = (load_profile(name) for name in profile_names())
    return [emulated(profile) for profile in shipped if profile.kind != "cpu"]


def join_command(
    hardware: HardwareProfile, address: str, *, devices: int, cpus: int, node_ip: str | None
) -> Sequence[str]:
    """Return the command that runs this machine as a node that measures for a cluster."""
    command = node_command(address, cpus=cpus)
    command += ["--resources", json.dumps({resource_name(hardware): devices})]
    return command if node_ip is None else [*command, "--node-ip-address", node_ip]


def node_command(address: str, *, cpus: int) -> list[str]:
    """Return the command that runs this machine as a node of the cluster at ``address``."""
    command = [sys.executable, "-m", "workers.node_process"]
    command += ["env", "RAY_worker_niceness=0"]  # Ray's workers would give way to anybody
    command += [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
    return [*command, "--address", address, "--num-cpus", str(cpus), "--disable-usage-stats"]


def check_address(address: str) -> None:
    """Complain where nothing listens: Ray itself would try for a minute.

    Raises:
        ClusterUnavailable: nothing answers at the address (WK707).
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S):
            return
    except (OSError, ValueError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ClusterUnavailable(address=address, reason=reason) from error


def become_node(command: Sequence[str]) -> None:
    """Replace this process by the node's: signals reach it."""
    os.execvp(command[0], list(command))
