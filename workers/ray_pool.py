"""RayPool: the same pool over Ray actors of a local or remote cluster.

Actors are named ``<role>:<installation>:<epoch>:<hardware>:<node>:<opening>:<index>``, stay on
their node and belong to this driver: they end with it. A new leader (higher epoch) kills what older
ones of its installation (its database) left; an older one finds newer actors and refuses.
Candidates still run in a child process of their actor, so an actor that dies is an infrastructure
failure: the candidate is reported as WORKER_LOST and the coordinator tries it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    RayActorError,
    RayError,
    RayTaskError,
)

from recommender.hardware import HardwareProfile
from recommender.workload import Workload
from tilecore.tile_config import TileConfig
from workers.compile_worker import CompileWorker, compile_zygote, compilers_of
from workers.device_lock import WAIT_S
from workers.errors import WorkerError, WorkerLost
from workers.gate import Gate
from workers.measure_pool import MeasurePool
from workers.measure_worker import PREPARE_TIMEOUT_S
from workers.offer import resource_name
from workers.outcome import Compiled, Failure, Timed
from workers.ray_cluster import (
    ClusterNode,
    affinity,
    first_line,
    leave,
    nodes,
    retire_older,
    start_local,
)
from workers.rig import Rig
from workers.sandbox import START_TIMEOUT_S
from workers.shipping import pack, unpack
from workers.toolbox import Toolbox

LOG = logging.getLogger(__name__)
RESTART_TIMEOUT_S = 60.0


class CompileActor:
    """Runs a CompileWorker on any node with a free core."""

    def ready(self) -> None:
        """Return once the actor runs, if there is room for candidates on its node."""
        self._worker.recover()

    def __init__(self, toolbox: Toolbox, store: Path, timeout_s: float) -> None:
        store.mkdir(parents=True, exist_ok=True)
        zygote = compile_zygote(toolbox)
        self._worker = CompileWorker(zygote, toolbox, store, timeout_s)

    def compile(self, workload: Workload, config: TileConfig) -> Compiled | Failure:
        """Return the artifact with its content, or why there is none."""
        outcome = self._worker.compile(workload, config)
        return outcome if isinstance(outcome, Failure) else pack(outcome)


class MeasureActor:
    """Runs the MeasureWorker of one device."""

    def ready(self) -> None:
        """Return once the actor runs."""

    def __init__(self, rig: Rig, store: Path) -> None:
        store.mkdir(parents=True, exist_ok=True)
        self._store = store
        _, self._worker = rig.build()

    def screen(self, workload: Workload, compiled: Compiled) -> Timed | Failure:
        """Check and time one candidate."""
        return self._worker.screen(workload, unpack(compiled, self._store))

    def confirm(self, workload: Workload, batch: Sequence[Compiled]) -> list[Timed | Failure]:
        """Check and time candidates interleaved with the rival."""
        return self._worker.confirm(workload, [unpack(c, self._store) for c in batch])


class ActorLane:
    """An actor as one lane of a MeasurePool: blocking calls, faults as WorkerLost."""

    def __init__(self, name: str, create: Callable[[], Any], limit_s: float) -> None:
        self._name = name
        self._create = create
        self._limit_s = limit_s  # far beyond what the actor itself allows: it must hang
        self._actor: Any = create()

    def compile(self, workload: Workload, config: TileConfig) -> Compiled | Failure:
        """Compile on the actor."""
        result: Compiled | Failure = self._call("compile", workload, config)
        return result

    def screen(self, workload: Workload, compiled: Compiled) -> Timed | Failure:
        """Screen on the actor."""
        result: Timed | Failure = self._call("screen", workload, compiled)
        return result

    def confirm(self, workload: Workload, batch: Sequence[Compiled]) -> list[Timed | Failure]:
        """Confirm on the actor."""
        result: list[Timed | Failure] = self._call("confirm", workload, list(batch))
        return result

    def kill(self) -> None:
        """End the actor and with it its child processes."""
        actor = self._actor
        if actor is not None:
            ray.kill(actor)

    def close(self) -> None:
        """Nothing is left to release: the pool killed the actor."""

    def recover(self) -> None:
        """Wait for the actor to come back, or make a new one where it died for good."""
        if self._actor is None:
            self._actor = self._create()
        ready = self._actor.ready.options(max_task_retries=-1).remote()
        try:
            ray.get(ready, timeout=RESTART_TIMEOUT_S)
        except ActorUnavailableError as error:
            raise WorkerLost(worker=self._name, reason=first_line(error)) from None
        except (RayError, GetTimeoutError) as error:
            self.kill()
            self._actor = None
            raise WorkerLost(worker=self._name, reason=first_line(error)) from None

    def _call(self, method: str, *args: Any) -> Any:
        actor = self._actor
        try:
            return ray.get(getattr(actor, method).remote(*args), timeout=self._limit_s)
        except RayTaskError as error:  # the actor lives; its worker raised
            cause = error.cause if isinstance(error.cause, Exception) else error
            if isinstance(cause, WorkerError):
                raise cause from None
            raise WorkerLost(worker=self._name, reason=f"{type(cause).__name__}: {cause}") from None
        except GetTimeoutError:
            ray.kill(actor, no_restart=False)
            raise WorkerLost(worker=self._name, reason=f"silent for {self._limit_s} s") from None
        except ActorUnavailableError as error:  # it restarts
            raise WorkerLost(worker=self._name, reason=first_line(error)) from None
        except RayActorError as error:  # died for good
            self._actor = None
            raise WorkerLost(worker=self._name, reason=first_line(error)) from None
        except RayError as error:
            raise WorkerLost(worker=self._name, reason=first_line(error)) from None


class RayPool(MeasurePool):
    """Measurer over Ray actors: compilers on every node, one exclusive meter per device."""

    def __init__(
        self,
        hardware: HardwareProfile,
        *,
        artifact_dir: Path,
        epoch: int,
        installation: str = "",
        compile_workers: int | None = None,
        compile_timeout_s: float = 60.0,
        run_timeout_s: float = 60.0,
        toolbox: Toolbox | None = None,
        bench: Callable[..., Any] | None = None,
        there: Sequence[ClusterNode] | None = None,
        gate_of: Callable[[str], Gate] | None = None,
    ) -> None:
        """Start actors on the nodes of the cluster that this process joined, else on this machine.

        ``there`` are the nodes that may be used (None: all), ``gate_of`` returns a node's gate by
        its key, which the pools of several kinds of hardware share. ``compile_workers`` candidates
        are compiled at once per node (None: as many as suits it), but not more than it has cores.

        Raises:
            ClusterUnavailable: no local Ray can be started (WK707).
            StaleEpoch: a newer leader has actors (WK705).
        """
        self._rig = Rig.of(hardware, run_timeout_s, toolbox=toolbox, bench=bench)
        self._gate_of = gate_of or (lambda _: Gate())
        self._store = artifact_dir.absolute()
        self._epoch, self._installation = epoch, installation[:12]
        self._opened = 0
        self._compile_workers = compile_workers
        self._compile_timeout_s = compile_timeout_s
        self._run_timeout_s = run_timeout_s
        self._owns_ray = start_local(hardware)
        retire_older(epoch, installation, hardware.key[:12])
        super().__init__(hardware, toolbox=self._rig.toolbox)
        self.follow(nodes() if there is None else there)

    def follow(self, there: Sequence[ClusterNode], draining: Collection[str] = ()) -> set[str]:
        """Use the nodes that offer the hardware, let go of those that do not any more.

        Code for GPUs is compiled on every node that has the compiler, and on none that measures
        with all its cores just then.

        Args:
            there: nodes of the cluster that may be used.
            draining: keys of those that get nothing new.

        Returns:
            Keys of draining nodes on which nothing is under way.
        """
        needed = resource_name(self.hardware)
        compiles_anywhere = self.hardware.kind != "cpu"
        ours = {
            node.key: node
            for node in there
            if node.resource == needed
            or (compiles_anywhere and node.compiles_for(self.hardware.kind))
        }
        for key in set(self._nodes) - set(ours):
            self.remove_node(key)
        for key, node in ours.items():
            if key not in draining and key not in self._nodes:
                try:
                    self._open(node)
                except (RayError, ValueError) as error:  # it is going just now
                    LOG.warning("node %s cannot be used yet: %s", node.name, first_line(error))
        idle = {key for key in ours if key in draining and key not in self._nodes}
        for key in set(draining) & set(self._nodes):
            if self.drain_node(key):
                self.remove_node(key)
                idle.add(key)
        return idle

    def close(self) -> None:
        """End this pool's actors; a Ray that this pool started ends too."""
        super().close()
        if self._owns_ray:
            leave()

    def _open(self, node: ClusterNode) -> None:
        """Start the actors of a node.

        They ask Ray for no CPU: pools for several kinds of hardware share a node's cores and its
        gate: while one measures on them, nothing is compiled there.
        """
        self._opened += 1  # the names of a node's earlier actors may still be taken
        owner = f"{self._installation}:{self._epoch}"
        place = f"{owner}:{self.hardware.key[:12]}:{node.key[:12]}:{self._opened}"
        tools, kind = self._toolbox, self.hardware.kind
        devices = node.devices if node.resource == resource_name(self.hardware) else 0
        wanted = self._compile_workers or compilers_of(node.cpus, devices, kind)
        compiling = min(wanted, max(1, node.cpus)) if node.compiles_for(kind) else 0
        compilers = [
            ActorLane(
                name := f"compile:{place}:{i}",
                _creator(
                    CompileActor, name, node, (tools, self._store, self._compile_timeout_s), {}
                ),
                self._compile_timeout_s + 2 * START_TIMEOUT_S,
            )
            for i in range(compiling)
        ]
        device = {resource_name(self.hardware): 1.0}
        meters = [
            ActorLane(
                name := f"meter:{place}:{i}",
                _creator(
                    MeasureActor, name, node, (replace(self._rig, index=i), self._store), device
                ),
                WAIT_S + 2 * PREPARE_TIMEOUT_S + 100 * self._run_timeout_s,
            )
            for i in range(devices)
        ]
        self.add_node(
            node.key, f"ray:{node.name}", compilers, meters, self._gate_of(node.key), node.driver
        )


def _creator(
    kind: type,
    name: str,
    node: ClusterNode,
    arguments: tuple[Any, ...],
    resources: Mapping[str, float],
) -> Callable[[], Any]:
    def create() -> Any:
        return (
            ray.remote(kind)
            .options(
                name=name,
                num_cpus=0,
                resources=dict(resources),
                scheduling_strategy=affinity(node),
                max_restarts=-1,
                max_task_retries=0,  # a candidate must not run again behind our back
            )
            .remote(*arguments)
        )

    return create
