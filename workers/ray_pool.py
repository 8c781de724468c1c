"""RayPool: the same pool over Ray actors of a local or remote cluster. The only file with Ray.

Actors are named ``<role>:<epoch>:<hardware>:<index>`` and belong to this driver: they end with it.
A new leader (higher epoch) kills what older ones left; an older one finds newer actors and refuses.
Candidates still run in a child process of their actor, so an actor that dies is an infrastructure
failure: the candidate is reported as WORKER_LOST and the coordinator tries it again.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.util import list_named_actors

from recommender.hardware import HardwareProfile
from recommender.workload import Workload
from tilecore.tile_config import TileConfig
from workers.compile_worker import CompileWorker, compile_zygote
from workers.device_lock import WAIT_S, lock_path
from workers.errors import (
    ClusterUnavailable,
    HardwareNotOffered,
    StaleEpoch,
    WorkerError,
    WorkerLost,
)
from workers.measure_pool import MeasurePool
from workers.measure_worker import PREPARE_TIMEOUT_S, MeasureWorker, measure_zygote
from workers.outcome import Compiled, Failure, Timed
from workers.sandbox import START_TIMEOUT_S
from workers.shipping import pack, unpack
from workers.toolbox import TilecoreToolbox, Toolbox

LOG = logging.getLogger(__name__)
NAMESPACE = "tilecore"
ROLES = ("compile", "meter")
NAME_TIMEOUT_S = 30.0
RESTART_TIMEOUT_S = 60.0
INIT_ATTEMPTS = 2


def resource_name(hardware: HardwareProfile) -> str:
    """Return the custom resource that a node with this hardware offers."""
    return f"hw:{hardware.key[:12]}"


class CompileActor:
    """Runs a CompileWorker on any node with a free core."""

    def ready(self) -> None:
        """Return once the actor runs."""

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

    def __init__(
        self, toolbox: Toolbox, store: Path, cores: int, kind: str, timeout_s: float
    ) -> None:
        store.mkdir(parents=True, exist_ok=True)
        self._store = store
        self._worker = MeasureWorker(
            measure_zygote(toolbox, cores),
            toolbox,
            cores=cores,
            timeout_s=timeout_s,
            lock=lock_path(kind),
        )

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
        self._is_restarting = False

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
        if self._actor is not None:
            ray.kill(self._actor)

    def close(self) -> None:
        """Nothing is left to release: the pool killed the actor."""

    def _call(self, method: str, *args: Any) -> Any:
        if self._actor is None:
            self._actor = self._create()
        if self._is_restarting:
            self._await_restart()
        try:
            return ray.get(getattr(self._actor, method).remote(*args), timeout=self._limit_s)
        except RayTaskError as error:  # the actor lives; its worker raised
            cause = error.cause if isinstance(error.cause, Exception) else error
            if isinstance(cause, WorkerError):
                raise cause from None
            raise WorkerLost(worker=self._name, reason=f"{type(cause).__name__}: {cause}") from None
        except GetTimeoutError:
            ray.kill(self._actor, no_restart=False)
            self._is_restarting = True
            raise WorkerLost(worker=self._name, reason=f"silent for {self._limit_s} s") from None
        except ActorUnavailableError as error:
            self._is_restarting = True
            raise WorkerLost(worker=self._name, reason=_first_line(error)) from None
        except RayActorError as error:  # died for good: the next call makes a new one
            self._actor = None
            raise WorkerLost(worker=self._name, reason=_first_line(error)) from None
        except RayError as error:
            raise WorkerLost(worker=self._name, reason=_first_line(error)) from None

    def _await_restart(self) -> None:
        """Wait for the actor to come back: until then every call to it would be lost."""
        ready = self._actor.ready.options(max_task_retries=-1).remote()
        try:
            ray.get(ready, timeout=RESTART_TIMEOUT_S)
        except ActorUnavailableError as error:
            raise WorkerLost(worker=self._name, reason=_first_line(error)) from None
        except (RayActorError, GetTimeoutError) as error:
            ray.kill(self._actor)
            self._actor, self._is_restarting = None, False
            raise WorkerLost(worker=self._name, reason=_first_line(error)) from None
        self._is_restarting = False


class RayPool(MeasurePool):
    """Measurer over Ray actors: a compile pool and one exclusive meter per device."""

    def __init__(
        self,
        hardware: HardwareProfile,
        *,
        artifact_dir: Path,
        epoch: int,
        address: str | None = None,
        compile_workers: int = 2,
        compile_timeout_s: float = 60.0,
        run_timeout_s: float = 60.0,
        toolbox: Toolbox | None = None,
    ) -> None:
        tools = toolbox or TilecoreToolbox()
        store = artifact_dir.absolute()
        self._owns_ray = connect(hardware, address)
        retire_older(epoch)
        kind = f"{epoch}:{hardware.key[:12]}"
        compilers = [
            ActorLane(
                f"compile:{kind}:{i}",
                _creator(
                    CompileActor, f"compile:{kind}:{i}", (tools, store, compile_timeout_s), 1, {}
                ),
                compile_timeout_s + 2 * START_TIMEOUT_S,
            )
            for i in range(min(compile_workers, max(1, int(ray.cluster_resources()["CPU"]))))
        ]
        arguments = (tools, store, hardware.cores, hardware.kind, run_timeout_s)
        needs = {resource_name(hardware): 1}
        meter = ActorLane(
            f"meter:{kind}:0",
            _creator(MeasureActor, f"meter:{kind}:0", arguments, 0, needs),
            WAIT_S + 2 * PREPARE_TIMEOUT_S + 100 * run_timeout_s,
        )
        super().__init__(
            hardware, compilers=compilers, meter=meter, toolbox=tools, name=f"ray:{kind}"
        )

    def close(self) -> None:
        """End this pool's actors; a Ray that this pool started ends too."""
        super().close()
        if self._owns_ray and ray.is_initialized():
            ray.shutdown()


def connect(hardware: HardwareProfile, address: str | None) -> bool:
    """Connect to the cluster at ``address``, or start a local one; return whether it was started.

    Raises:
        HardwareNotOffered: no node offers the hardware (WK704).
        ClusterUnavailable: there is no cluster at the address, or none can be started (WK707).
    """
    needed = resource_name(hardware)
    starts_local = False
    if not ray.is_initialized():
        starts_local = address is None
        local = {"num_cpus": hardware.cores, "resources": {needed: 1}, "include_dashboard": False}
        with _kept_sigterm():
            _init(address or "local", local if starts_local else {})
    offered = [name for name in ray.cluster_resources() if name.startswith("hw:")]
    if needed not in offered:
        raise HardwareNotOffered(resource=needed, found=", ".join(offered) or "none")
    return starts_local


def _init(address: str, options: dict[str, Any]) -> None:
    """Start or join; a node that comes up too slowly on a busy machine is tried again."""
    for left in reversed(range(INIT_ATTEMPTS)):
        before = set(psutil.Process().children(recursive=True))
        try:
            ray.init(
                address=address,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.WARNING,
                **options,
            )
            return
        except Exception as error:  # Ray raises a bare Exception when its node starts too slowly
            ray.shutdown()
            _end(set(psutil.Process().children(recursive=True)) - before)
            if not left:
                raise ClusterUnavailable(address=address, reason=_first_line(error)) from error
            LOG.warning("starting Ray at %s failed, trying again: %s", address, error)


def _end(processes: set[psutil.Process]) -> None:
    """Kill what a failed start left behind: ray.shutdown does not know a half-started node."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(list(processes), timeout=5)


def retire_older(epoch: int) -> None:
    """Kill named actors of earlier leaders, and of this epoch's earlier pool.

    Raises:
        StaleEpoch: actors of a newer leader are there (WK705).
    """
    deadline = time.monotonic() + NAME_TIMEOUT_S
    while True:
        names = [n for n in list_named_actors() if n.split(":")[0] in ROLES]
        newest = max((int(n.split(":")[1]) for n in names), default=epoch)
        if newest > epoch:
            raise StaleEpoch(epoch=epoch, found=newest)
        if not names or time.monotonic() > deadline:
            return
        for name in names:
            try:
                ray.kill(ray.get_actor(name))
                LOG.info("killed actor %s of an earlier leader", name)
            except (ValueError, RayError):  # gone in the meantime
                continue
        time.sleep(0.1)


def _creator(
    kind: type, name: str, arguments: tuple[Any, ...], cpus: int, resources: Mapping[str, float]
) -> Callable[[], Any]:
    def create() -> Any:
        return (
            ray.remote(kind)
            .options(
                name=name,
                num_cpus=cpus,
                resources=dict(resources),
                max_restarts=-1,
                max_task_retries=0,  # a candidate must not run again behind our back
            )
            .remote(*arguments)
        )

    return create


class _kept_sigterm:
    """Keep the caller's SIGTERM handler: ray.init replaces it."""

    def __enter__(self) -> None:
        self._is_main = threading.current_thread() is threading.main_thread()
        self._handler = signal.getsignal(signal.SIGTERM)

    def __exit__(self, *_: object) -> None:
        if self._is_main and self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
