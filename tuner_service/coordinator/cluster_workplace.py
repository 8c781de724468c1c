"""ClusterWorkplace: nodes of a Ray cluster that come and go, and what SQL says about them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from db.store import SqlStore
from recommender.freshness import SHOWN
from recommender.hardware import HardwareProfile
from recommender.measurement import Toolchain
from recommender.ports import Measurer
from tuner_service.wiring import is_measured
from workers.errors import ClusterUnavailable
from workers.gate import Gate
from workers.offer import resource_name
from workers.ray_cluster import (
    ClusterNode,
    Inquiry,
    PeakInquiry,
    join,
    leave,
    leaving,
    nodes,
    retire_older,
)
from workers.ray_pool import RayPool

log = structlog.get_logger()
GRACE_S = 15.0  # a node that is restarted is back before its runs have to wait for hardware
ANSWER_S = 120.0  # a process of a node starts, and may measure the node's peaks
ASK_AGAIN_S, MAX_ASK_AGAIN_S = 4.0, 600.0  # after the first failure to answer, after many


class MakePool(Protocol):
    """Makes the pool of a kind of hardware."""

    def __call__(
        self, hardware: HardwareProfile, epoch: int, *, there: Sequence[ClusterNode],
        gate_of: Callable[[str], Gate],
    ) -> RayPool:  # fmt: skip
        """Return a pool on these nodes, whose gates it shares."""
        ...


@dataclass(slots=True)
class _Known:
    """A node and what it said of itself.

    Attributes:
        node: as Ray knows it, with what it said.
        inquiry: what it is asked just now; None: nothing.
        hardware: what it is, once it has said all that is asked.
        seen: what it is, as far as it said.
        refused: why it cannot be used.
        asked_at: when it was asked first.
        failures: how often it could not say what it is.
        ask_at: when it is asked again.
    """

    node: ClusterNode
    inquiry: Inquiry | None
    hardware: HardwareProfile | None = None
    seen: HardwareProfile | None = None
    refused: str = ""
    asked_at: float = field(default_factory=time.monotonic)
    failures: int = 0
    ask_at: float = 0.0


class ClusterWorkplace:
    """Measures on every node that has the toolchain of this process."""

    is_elsewhere = True

    def __init__(
        self,
        address: str,
        toolchain: Toolchain,
        make_pool: MakePool,
        inquire: Callable[[ClusterNode], Inquiry] = Inquiry,
        inquire_peaks: Callable[[ClusterNode], Inquiry] = PeakInquiry,
    ) -> None:
        self._address = address
        self._toolchain = toolchain
        self._make_pool = make_pool
        self._inquire, self._inquire_peaks = inquire, inquire_peaks
        self._known: dict[str, _Known] = {}
        self._pools: dict[str, RayPool] = {}
        self._offered: dict[str, tuple[HardwareProfile, float]] = {}  # with when last seen
        self._gates: dict[str, Gate] = {}  # of the nodes, shared by the pools
        self._epoch = 0

    @property
    def is_settled(self) -> bool:
        """Whether all nodes have said what they are, or had the time to."""
        late = time.monotonic() - ANSWER_S
        return all(k.hardware or k.refused or k.asked_at < late for k in self._known.values())

    def open(self) -> None:
        """Join the cluster; raises ClusterUnavailable while there is none (WK707)."""
        join(self._address)

    def refresh(self, store: SqlStore, epoch: int) -> Sequence[HardwareProfile]:
        """See who is there, use and drain nodes, note them in SQL; return what is on offer."""
        if epoch != self._epoch:
            retire_older(epoch, store.installation)
            self._epoch, self._known, self._pools, self._offered = epoch, {}, {}, {}
        there = {node.key: node for node in nodes()}
        self._known = {key: known for key, known in self._known.items() if key in there}
        for key, node in there.items():
            if key not in self._known:
                self._known[key] = _Known(node, self._inquire(node))
        for key, known in list(self._known.items()):
            if known.hardware is None:
                self._ask(store, known, key)
        states = {node.key: node.state for node in store.nodes.list(with_lost=False)}
        for key in leaving():  # as if somebody had asked for it: they end once nothing runs there
            if key in self._known and states.get(key) == "active":
                log.info("a node was told to end", node=self._known[key].node.name)
                states[key] = store.nodes.drain(key).state
        draining = {key for key, state in states.items() if state in ("draining", "drained")}
        idle = {key for key in draining if states[key] == "draining"}
        for pool in self._pools.values():
            pool.follow(self._usable(), draining)
            idle -= pool.node_keys
        store.nodes.see(list(there), idle, epoch)
        return self._offers({key for key, state in states.items() if state == "drained"})

    def measurer(self, hardware: HardwareProfile, epoch: int) -> Measurer:
        """Return actors on all nodes with the hardware, and those that compile for it."""
        pool = self._make_pool(hardware, epoch, there=self._usable(), gate_of=self._gate_of)
        self._pools[hardware.key] = pool
        return pool

    def release(self, hardware_key: str) -> None:
        """Forget actors that were closed for want of work."""
        self._pools.pop(hardware_key, None)

    def close(self) -> None:
        """Leave the cluster."""
        leave()

    def _gate_of(self, key: str) -> Gate:
        return self._gates.setdefault(key, Gate())

    def _usable(self) -> Sequence[ClusterNode]:
        return [k.node for k in self._known.values() if k.hardware and not k.refused]

    def _ask(self, store: SqlStore, known: _Known, key: str) -> None:
        """Take in what a node says of itself, if it has answered; ask again where it could not."""
        node = known.node
        if known.inquiry is None:
            if time.monotonic() >= known.ask_at:
                known.inquiry = self._inquire(node)
            return
        try:
            answer = known.inquiry.answer()
        except ClusterUnavailable as error:
            self._ask_later(store, known, key, _why(error))
            return
        if answer is None:
            return
        known.refused = ""
        hardware, toolchain = answer
        known.seen = hardware
        ours = self._toolchain
        compiles = toolchain.on("cpu") == ours.on("cpu")
        same_nvrtc = toolchain.nvrtc == ours.nvrtc
        known.node = replace(
            node, compiles=compiles, same_nvrtc=same_nvrtc, driver=hardware.driver
        )  # fmt: skip
        only_measures = hardware.kind != "cpu" and toolchain.tilecore == self._toolchain.tilecore
        if resource_name(hardware) != node.resource:
            known.refused = f"it is {hardware.name} ({resource_name(hardware)}), not what it offers"
        elif not compiles and not only_measures:
            known.refused = f"it has {_differences(toolchain.on('cpu'), ours.on('cpu'))}"
        stored = store.hardware(hardware.key)
        if is_measured(hardware) or hardware.kind != "cpu":
            store.save_hardware(hardware)
        elif stored is not None and is_measured(stored):
            hardware = replace(stored, driver=hardware.driver)
            if hardware != stored:  # what is measured from now on is of another driver
                store.save_hardware(hardware)
        elif not known.refused:
            known.inquiry = self._inquire_peaks(node)
            return
        known.hardware = hardware
        self._note(store, known, key, hardware)

    def _ask_later(self, store: SqlStore, known: _Known, key: str, why: str) -> None:
        """Refuse a node until it can say what it is: it is asked again, less often each time.

        SQL has it by its hardware: where it never said that, and none that is known bears the name
        of what it offers, only the log tells.
        """
        delay_s = min(MAX_ASK_AGAIN_S, ASK_AGAIN_S * 2.0 ** min(known.failures, 100))
        known.failures += 1
        known.inquiry, known.ask_at = None, time.monotonic() + delay_s
        known.refused = f"it cannot say what it is: {why}"
        named = (h for h in store.all_hardware() if resource_name(h) == known.node.resource)
        hardware = known.seen or next(named, None)
        if hardware is None:
            log.warning("node", name=known.node.name, refused=known.refused)
        else:
            self._note(store, known, key, hardware)

    def _note(self, store: SqlStore, known: _Known, key: str, hardware: HardwareProfile) -> None:
        """Let SQL know of a node."""
        node = known.node
        tell = log.warning if known.refused else log.info
        tell("node", name=node.name, hardware=hardware.name, refused=known.refused)
        store.nodes.join(
            key,
            name=node.name,
            hardware=hardware,
            devices=node.devices,
            epoch=self._epoch,
            refused=known.refused,
        )

    def _offers(self, drained: set[str]) -> Sequence[HardwareProfile]:
        """Return hardware that runs can be worked on for: someone must compile, too."""
        now = time.monotonic()
        usable = {
            key: known
            for key, known in self._known.items()
            if known.hardware is not None and not known.refused and key not in drained
        }
        for known in usable.values():
            hardware = known.hardware
            if hardware is not None and any(
                other.node.compiles_for(hardware.kind) for other in usable.values()
            ):
                self._offered[hardware.key] = (hardware, now)
        return [hardware for hardware, seen in self._offered.values() if now - seen < GRACE_S]


def _why(error: ClusterUnavailable) -> str:
    """Return what went wrong: on the node, which Ray's error bears as its cause, or on the way."""
    cause = getattr(error.__cause__, "cause", None)
    if not isinstance(cause, Exception):
        return error.message
    return f"{type(cause).__name__}: {str(cause).partition(chr(10))[0]}"


def _differences(theirs: Toolchain, ours: Toolchain) -> str:
    """Return in words what a node's toolchain has other than the coordinator's."""
    names = ("tilecore", "tvm", "llvm", "linker")
    pairs = [(name, getattr(theirs, name), getattr(ours, name)) for name in names]
    different = [(name, its, own) for name, its, own in pairs if its != own]
    return ", ".join(
        f"{name} {_shown(name, its)} (the coordinator has {_shown(name, own)})"
        for name, its, own in different
    )


def _shown(name: str, version: str) -> str:
    return (version[:SHOWN] if name == "tilecore" else version) or "none"  # of a digest the begin
