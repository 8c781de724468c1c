"""The Ray cluster: join or start one, see its nodes, ask a node what it is, end old actors.

Only this file and ``workers.ray_pool`` import Ray. A driver ends with the head of its cluster (the
process exits), which is why none of this runs in the API process.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # it is compiled
from ray.exceptions import AuthenticationError, RayError
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from recommender.hardware import HardwareProfile
from recommender.measurement import Toolchain
from workers.errors import ClusterUnavailable, StaleEpoch
from workers.host import detect
from workers.offer import (
    RESOURCE_PREFIX,
    check_address,
    node_command,
    offered_here,
    resource_name,
)
from workers.peaks import measure
from workers.toolchain import current_toolchain

LOG = logging.getLogger(__name__)
NAMESPACE = "tilecore"
ROLES = ("compile", "meter")
NAME_PARTS = 7  # of an actor's name (workers.ray_pool)
NAME_TIMEOUT_S = 30.0
INIT_ATTEMPTS = 2
NODE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """A machine of the cluster: its key in Ray, its name, what it offers.

    ``compiles``: whether its compiler is the coordinator's; one that only measures needs none.
    ``same_nvrtc``: whether that holds of what makes code for NVIDIA's GPUs, too.
    """

    key: str
    name: str
    cpus: int
    resource: str  # hw:<hardware key>
    devices: int
    compiles: bool = True
    driver: str = ""  # of its devices, once it was asked
    same_nvrtc: bool = True

    def compiles_for(self, kind: str) -> bool:
        """Return whether candidates for a kind of device may be compiled here."""
        return self.compiles and (self.same_nvrtc or kind != "cuda")


def start_local(hardware: HardwareProfile) -> bool:
    """Start a cluster of this machine, unless this process is in one; return whether it did.

    Raises:
        ClusterUnavailable: none can be started (WK707).
    """
    if ray.is_initialized():
        return False
    offer = {resource_name(hardware): 1}
    options = {"num_cpus": hardware.cores, "resources": offer, "include_dashboard": False}
    # Ray's workers would give way to every other process, which shows in the times.
    _init("local", {**options, "_system_config": {"worker_niceness": 0}})
    return True


def join(address: str) -> None:
    """Connect this process to the cluster at ``address``, unless it is.

    Ray connects through a node of the same machine. Where there is none (a container of its own),
    one is started that offers nothing; it ends with this process (unless that is killed: the next
    one to join finds it).

    Raises:
        ClusterUnavailable: there is no cluster (WK707).
    """
    if ray.is_initialized():
        return
    if address != "auto":  # Ray's word for the cluster whose node is here already
        check_admission(address)
        if not _has_node(address):
            _OWN_NODE.start(address)
    _init(address, {})


def check_admission(address: str) -> None:
    """Complain where no cluster lets this process in: Ray itself would try on and show a traceback.

    Raises:
        ClusterUnavailable: nothing answers, it is no cluster, or the token is another one (WK707).
    """
    check_address(address)
    try:
        GcsClient(address=address)
    except AuthenticationError as error:
        reason = "one that takes another token than that of this process"
        raise ClusterUnavailable(address=address, reason=reason) from error
    except RayError as error:
        raise ClusterUnavailable(address=address, reason=first_line(error)) from error


def leave() -> None:
    """Disconnect; a cluster or node that this process started ends."""
    if ray.is_initialized():
        ray.shutdown()
    _OWN_NODE.stop()


class _OwnNode:
    """A node of this process, without CPUs or devices, through which it reaches its cluster."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, address: str) -> None:
        """Start it, unless it runs, and wait until it is there.

        Raises:
            ClusterUnavailable: it ended, or was not there in time (WK707).
        """
        if self._process is None or self._process.poll() is not None:
            quiet = subprocess.DEVNULL
            self._process = subprocess.Popen(
                node_command(address, cpus=0), stdin=quiet, stdout=quiet, stderr=quiet
            )
        deadline = time.monotonic() + NODE_TIMEOUT_S
        while not _has_node(address):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise ClusterUnavailable(address=address, reason="no node could be started here")
            time.sleep(0.2)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            children = set(psutil.Process(self._process.pid).children(recursive=True))
            self._process.terminate()
            try:
                self._process.wait(NODE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            _end(children)
            self._process = None


_OWN_NODE = _OwnNode()


def _has_node(address: str) -> bool:
    """Return whether a node of the cluster at ``address`` runs where this process can see it."""
    host, _, port = address.rpartition(":")
    try:
        addresses = {str(a[4][0]) for a in socket.getaddrinfo(host, None)}
    except OSError:
        addresses = {host}
    if any(a.startswith("127.") or a == "::1" for a in addresses):  # Ray names the machine's own
        addresses |= {a.address for part in psutil.net_if_addrs().values() for a in part}
    wanted = {f"--gcs-address={a}:{port}" for a in addresses}
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "raylet" and wanted & set(process.info["cmdline"] or ()):
            return True
    return False


def nodes() -> Sequence[ClusterNode]:
    """Return the machines that live and offer hardware."""
    found = []
    for node in ray.nodes():
        offers = {n: int(c) for n, c in node["Resources"].items() if n.startswith(RESOURCE_PREFIX)}
        if node["Alive"] and offers:
            resource, devices = next(iter(offers.items()))
            found.append(
                ClusterNode(
                    key=node["NodeID"],
                    name=f"{node['NodeManagerHostname']}/{node['NodeManagerAddress']}",
                    cpus=int(node["Resources"].get("CPU", 0)),
                    resource=resource,
                    devices=devices,
                )
            )
    return found


def leaving() -> set[str]:
    """Return the keys of nodes that were told to end, and wait for what is under way on them.

    Ray asks no more of them by itself; it has no other way to say so than its own state.
    """
    return set(ray._private.state.state.get_draining_nodes())


class Inquiry:
    """What a node is: asked without waiting, as it may take seconds to start a process there."""

    def __init__(self, node: ClusterNode) -> None:
        self._what = _run_on(node, _describe, node.resource)

    def answer(self) -> tuple[HardwareProfile, Toolchain] | None:
        """Return hardware and toolchain of the node, None while there is no answer.

        Raises:
            ClusterUnavailable: the node does not answer any more (WK707).
        """
        if not ray.wait([self._what], timeout=0)[0]:
            return None
        try:
            found: tuple[HardwareProfile, Toolchain] = ray.get(self._what)
        except RayError as error:
            raise ClusterUnavailable(address="the node", reason=first_line(error)) from error
        return found


def _describe(resource: str) -> tuple[HardwareProfile, Toolchain]:
    """Return what a node offers by a resource, or what it is where it has no such thing."""
    return offered_here(resource) or detect(), current_toolchain()


class PeakInquiry(Inquiry):
    """The same with measured rates, which takes some seconds of the whole machine."""

    def __init__(self, node: ClusterNode) -> None:
        self._what = _run_on(node, _measure_peaks)


def _measure_peaks() -> tuple[HardwareProfile, Toolchain]:
    return measure(detect()), current_toolchain()


def _run_on(node: ClusterNode, function: Any, *arguments: Any) -> Any:
    options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": affinity(node)}
    return ray.remote(function).options(**options).remote(*arguments)


def affinity(node: ClusterNode) -> NodeAffinitySchedulingStrategy:
    """Return what makes Ray place something on this node or not at all."""
    return NodeAffinitySchedulingStrategy(node.key, soft=False)


def retire_older(epoch: int, installation: str = "", hardware_key: str | None = None) -> None:
    """Kill named actors of earlier leaders, and of this epoch's earlier pool for the hardware.

    Those of other installations are left alone: their epochs count something else.

    Raises:
        StaleEpoch: actors of a newer leader are there (WK705).
    """
    deadline = time.monotonic() + NAME_TIMEOUT_S
    while True:
        split = {name: name.split(":") for name in list_named_actors()}
        names = {
            name: (int(parts[2]), parts[3])
            for name, parts in split.items()
            if parts[0] in ROLES and parts[1] == installation[:12] and len(parts) == NAME_PARTS
        }
        newest = max((found for found, _ in names.values()), default=epoch)
        if newest > epoch:
            raise StaleEpoch(epoch=epoch, found=newest)
        old = [n for n, (found, key) in names.items() if found < epoch or key == hardware_key]
        if not old or time.monotonic() > deadline:
            return
        for name in old:
            try:
                ray.kill(ray.get_actor(name))
                LOG.info("killed actor %s of an earlier leader", name)
            except (ValueError, RayError):  # gone in the meantime
                continue
        time.sleep(0.1)


def first_line(error: Exception) -> str:
    """Return the class and the first line of an error: Ray's go on for pages."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"


def _init(address: str, options: dict[str, Any]) -> None:
    """Start or join; a node that comes up too slowly on a busy machine is tried again."""
    for left in reversed(range(INIT_ATTEMPTS)):
        before = set(psutil.Process().children(recursive=True))
        try:
            with _kept_sigterm():
                ray.init(
                    address=address,
                    namespace=NAMESPACE,
                    log_to_driver=False,
                    logging_level=logging.WARNING,
                    **options,
                )
            return
        except SystemExit:  # SIGTERM: nothing runs there yet that Ray would wait for
            _end(set(psutil.Process().children(recursive=True)) - before)
            raise
        except Exception as error:  # Ray raises a bare Exception when its node starts too slowly
            ray.shutdown()
            _end(set(psutil.Process().children(recursive=True)) - before)
            if not left:
                raise ClusterUnavailable(address=address, reason=first_line(error)) from error
            LOG.warning("starting Ray at %s failed, trying again: %s", address, error)


def _end(processes: set[psutil.Process]) -> None:
    """Kill what a failed start left behind: ray.shutdown does not know a half-started node."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(list(processes), timeout=5)


class _kept_sigterm:
    """Keep the caller's SIGTERM handler: ray.init replaces it."""

    def __enter__(self) -> None:
        self._is_main = threading.current_thread() is threading.main_thread()
        self._handler = signal.getsignal(signal.SIGTERM)

    def __exit__(self, *_: object) -> None:
        if self._is_main and self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
