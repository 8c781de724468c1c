"""The analytic model: predicted time with no measurement at all, in terms that people can read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from operator import itemgetter
from typing import Any

import numpy as np

from recommender.cpu.choices import Columns, Tiling
from recommender.cpu.few_rows import joined_blocks
from recommender.cpu.model import DEFAULT_CONSTANTS, CpuConstants, core_terms
from recommender.cpu.terms import CoreTerms
from recommender.hardware import HardwareProfile
from recommender.hashed import Hashed
from recommender.op_model import op_terms
from recommender.space import SearchSpace
from recommender.straight_line import StraightLine, place_of_largest, plain
from tilecore.graph import Bindings, Contraction, TileGraph, evaluate, sole_contraction
from tilecore.lazy import cached_property
from tilecore.tile_config import KnobValue

PREFILTER = 512  # candidates worth a second look, the best by this model
ANALYTIC_SPREAD = (0.75, 1.6)  # 80 % of measurements lie within, before anything was learned
TIME = "time"  # beside the names of terms
ADVICE = {
    "fma": "at the arithmetic limit of the cores: only fewer operations would help",
    "loads": "operand loads outnumber FMAs: use a squarer register tile (micro_m, micro_n)",
    "latency": "too few accumulators to hide the FMA latency: enlarge micro_m * micro_n",
    "l2": "operands stream from L2: a smaller block_K (CPU), larger blocks (GPU)",
    "l3": "operands stream from beyond L2: enlarge block_M (reuse of B) or shrink block_K",
    "calls": "many short micro-kernel runs: enlarge block_K",
    "update_c": "C is loaded and stored often: enlarge block_K",
    "pack_a": "copying A per block: enlarge block_N, or pack_a=none",
    "pack_b": "packing B in every block: enlarge block_M, or pack_b=grid",
    "pack_b_once": "packing B once costs as much as the product: pack_b=block for few rows",
    "imbalance": "cores wait for the last block: use smaller blocks",
    "launch": "the call itself: batch several problems into one call",
    "memory": "memory bandwidth: the problem moves more bytes than it computes with",
    "work": "scalar and vector arithmetic",
    "products": "matrix products inside the program: larger blocks keep their instructions busier",
    "tiles": "tiles move between statements: smaller blocks stay in the L1 cache",
    "runs": "many short statements: use larger blocks",
    "tensor": "at the rate of the tensor cores: only fewer operations would help",
    "shared": "products read more than shared memory gives: larger warp tiles (block_M, block_N)",
    "waiting": "steps wait for memory: more stages, a deeper block_K, or more resident blocks",
    "tail": "the last wave of blocks is partly filled: other block sizes, or split K",
}


@dataclass(frozen=True, slots=True)
class Estimate:
    """The predicted time of one config and where it goes (seconds, on all threads)."""

    time_s: float
    terms_s: Mapping[str, float]
    bound_by: str
    work_flop: float
    threads: int
    unit: str = "thread(s)"

    def explain(self) -> str:
        """Return what bounds the config, each term's share, and what to change."""
        shares = sorted(self.terms_s.items(), key=itemgetter(1), reverse=True)
        parts = [f"{name} {s / self.time_s:.0%}" for name, s in shares if s >= 0.01 * self.time_s]
        rate = self.work_flop / self.time_s / 1e9
        where = f"{self.threads} {self.unit}"
        return (
            f"analytic: {self.time_s * 1e6:.1f} us predicted on {where}, {rate:.1f} GFLOP/s;"
            f" bound by {self.bound_by}: {ADVICE[self.bound_by]} ({', '.join(parts)})"
        )


@dataclass(frozen=True)
class Estimates:
    """Predicted times of many configs; every array has one entry per config.

    Attributes:
        time_s: predicted times.
        terms: returns what adds up to them; asked only of the configs to be explained.
        resources: returns the time that each resource alone would need.
        again: returns the same for another number of cores; None: there is one number only.
    """

    time_s: np.ndarray
    terms: Callable[[], Mapping[str, np.ndarray]]
    resources: Callable[[], Mapping[str, np.ndarray]]
    tiling: Tiling | None
    work_flop: float
    threads: int
    unit: str = "thread(s)"
    again: Callable[[int], Estimates] | None = None

    def on(self, threads: int) -> Estimates:
        """Return the estimates of the same configs on another number of cores (0: all)."""
        return self if self.again is None else self.again(threads)

    def times_with(self, row: int) -> Callable[[int], float]:
        """Return what tells the time of one config on any number of cores."""
        return lambda threads: self.on(threads).time_s.item(row)

    @cached_property
    def resources_s(self) -> Mapping[str, np.ndarray]:
        """Time that each resource alone would need."""
        return self.resources()

    @cached_property
    def terms_s(self) -> Mapping[str, np.ndarray]:
        """What adds up to ``time_s``; the micro-kernel's time counts under what bounds it."""
        return {name: plain(seconds) for name, seconds in self.terms().items()}

    @property
    def bound_by(self) -> np.ndarray:
        """Name of the largest term of every config."""
        names = np.array(list(self.terms_s))
        found: np.ndarray = names[place_of_largest(list(self.terms_s.values()))]
        return found

    def at(self, row: int) -> Estimate:
        """Return the estimate of one config."""
        terms = [(name, column.item(row)) for name, column in self.terms_s.items()]
        return _estimate(self.time_s.item(row), terms, self.work_flop, self.threads, self.unit)


def estimate(
    space: SearchSpace,
    columns: Columns | None = None,
    *,
    threads: int = 0,
    constants: CpuConstants = DEFAULT_CONSTANTS,
) -> Estimates:
    """Return predicted times of all candidates of ``space``, or of the configs in ``columns``.

    Args:
        space: program, problem and device.
        columns: knob values per config, as ``SearchSpace.table`` makes them.
        threads: cores used (0: all of the device).
        constants: properties of the generated code.
    """
    known = space.known(space.factored if columns is None else columns)
    return estimate_graph(
        space.graph, space.site, space.hardware, known,
        work_flop=space.definition.work_flop(space.problem), threads=threads, constants=constants,
    )  # fmt: skip


def estimate_each(
    space: SearchSpace, configs: Sequence[Mapping[str, KnobValue]], *, threads: int = 0
) -> list[Estimate]:
    """Return the estimates of a few configs, each at the cost of some arithmetic of Python.

    What ``estimate`` finds, which takes as long for one config as for hundreds. It does where sizes
    are no symbols: the text of a formula is worth making where it is used for other sizes, too.
    """
    hardware = space.hardware
    cores = _cores(threads if hardware.kind == "cpu" else 0, hardware)
    if space.sizes:
        straight = _straight(space.graph, Hashed(hardware, hardware.key), cores)
        found = space.each(straight, configs)
        if found is not None:
            work_flop = space.definition.work_flop(space.problem)
            unit = _unit(hardware)
            return [_estimate(x.pop(TIME), x.items(), work_flop, cores, unit) for x in found]
    estimates = estimate(space, space.table(configs), threads=threads)
    return [estimates.at(i) for i in range(len(configs))]


@lru_cache(maxsize=64)
def _straight(graph: TileGraph, device: Hashed, cores: int) -> StraightLine:
    """Return the model of a program whose sizes are symbols, in straight-line code."""
    site, hardware = sole_contraction(graph), device.value

    def model(columns: dict[str, Any]) -> Mapping[str, Any]:
        found = estimate_graph(
            graph, site, hardware, Bindings(columns), work_flop=0.0, threads=cores
        )  # fmt: skip
        return {TIME: found.time_s, **found.terms_s}

    return StraightLine(model)


def _unit(hardware: HardwareProfile) -> str:
    return "thread(s)" if hardware.kind == "cpu" else "multiprocessors"


def _estimate(
    time_s: float, terms_s: Iterable[tuple[str, float]], work_flop: float, threads: int, unit: str
) -> Estimate:  # fmt: skip
    """Return an estimate of what is in it."""
    terms = {name: seconds for name, seconds in terms_s if seconds > 0}
    return Estimate(time_s, terms, max(terms, key=terms.__getitem__), work_flop, threads, unit)


def estimate_graph(
    graph: TileGraph,
    site: Contraction | None,
    hardware: HardwareProfile,
    columns: Columns,
    *,
    work_flop: float,
    threads: int = 0,
    constants: CpuConstants = DEFAULT_CONSTANTS,
) -> Estimates:
    """Return predicted times of a program whose main contraction is ``site`` (see ``estimate``)."""
    if hardware.kind != "cpu":
        from recommender.gpu.model import gpu_terms  # questions about CPUs need none of it

        found = gpu_terms(graph, columns, hardware)
        return Estimates(
            _total(found.terms.values()), lambda: found.terms, lambda: found.resources, None,
            work_flop, hardware.cores, _unit(hardware),
        )  # fmt: skip
    if site is None or site.a.source is None or site.b.source is None:
        return _of_ops(graph, columns, hardware, _cores(threads, hardware), work_flop)
    t = Tiling(site, columns, hardware)
    grids = np.maximum(1.0, evaluate(site.launch.blocks, columns) / t.blocks)
    return _Product(t, site, hardware, constants, grids, work_flop).on(threads)


@dataclass(frozen=True, eq=False)
class _Product:
    """One product on a CPU, before it is known on how many cores.

    No closures that know themselves: they would keep an answer's columns, megabytes, until garbage
    is looked for.
    """

    t: Tiling
    site: Contraction
    hardware: HardwareProfile
    constants: CpuConstants
    grids: np.ndarray
    work_flop: float

    @cached_property
    def _apart(self) -> CoreTerms:
        return self._terms(None)

    def _terms(self, joined: np.ndarray | None) -> CoreTerms:
        return core_terms(self.t, self.site, self.hardware, self.constants, joined)

    def on(self, threads: int) -> Estimates:
        """Return the estimates on a number of cores (0: all)."""
        cores = _cores(threads, self.hardware)
        joined = joined_blocks(self.t, self.site, self.grids, cores)
        core = self._apart if joined is None else self._terms(joined)
        share = self.t.busiest_share(cores, self.grids, joined)
        return _of_product(self.t, core, share, self.hardware, cores, self.work_flop, self.on)


def _cores(threads: int, hardware: HardwareProfile) -> int:
    return min(threads or hardware.cores, hardware.cores)


def _of_product(
    t: Tiling, core: CoreTerms, spread: np.ndarray, hardware: HardwareProfile, cores: int,
    work_flop: float, on: Callable[[int], Estimates],
) -> Estimates:  # fmt: skip
    """Return the estimates of one product: what one core takes, spread over ``cores``.

    ``spread``: the share of the busiest core; ``on`` returns the estimates of another number.
    """
    core = core.times(t.products)
    alone = core.kernel + core.calls + (core.update_c + (core.pack_a + core.pack_b))
    launch = hardware.launch_s * (1.0 if cores > 1 else 0.2) * (1.0 + t.is_b_hoisted)

    @cache
    def resources() -> dict[str, np.ndarray]:
        found = core.resources()
        return {**found, "l3": found["l3"] * _bandwidth_loss(hardware, cores)}

    def terms() -> dict[str, np.ndarray]:
        resources_s = resources()
        slowest, kernel = place_of_largest(list(resources_s.values())), core.kernel / cores
        return {
            **{name: np.where(slowest == i, kernel, 0.0) for i, name in enumerate(resources_s)},
            "calls": core.calls / cores,
            "update_c": core.update_c / cores,
            "pack_a": core.pack_a / cores,
            "pack_b": core.pack_b / cores,
            "pack_b_once": core.pack_b_once / cores,
            "imbalance": alone * (spread - 1.0 / cores),
            "launch": launch,
        }

    time_s = plain(alone * spread + (core.pack_b_once / cores + launch))
    return Estimates(
        time_s, terms, resources, t, work_flop, cores,
        again=on,
    )  # fmt: skip


def _bandwidth_loss(hardware: HardwareProfile, cores: int) -> float:
    """Return by how much a core's bandwidth shrinks when ``cores`` of them share the memory."""
    wanted = cores * hardware.core_bandwidth_bytes_per_s
    return max(1.0, wanted / hardware.bandwidth_bytes_per_s)


def _of_ops(
    graph: TileGraph, columns: Columns, hardware: HardwareProfile, cores: int, work_flop: float
) -> Estimates:
    """Return the estimates of a program that is not one product (see op_model)."""
    t = op_terms(graph, columns, hardware, cores)
    resources = {
        "products": t.products / cores, "work": t.work / cores, "tiles": t.tiles / cores,
        "runs": t.runs / cores, "memory": t.memory / cores,
    }  # fmt: skip
    shares = t.shares
    terms = {name: seconds * shares[name] for name, seconds in resources.items()}
    # Few cores do not get what all of them get from memory.
    alone = t.memory / _bandwidth_loss(hardware, cores) * t.busiest
    slower = np.maximum(alone - resources["memory"], 0.0)
    waited = t.busy_s * (t.busiest - 1.0 / cores)
    terms["imbalance"] = waited * shares["work"] + slower * shares["memory"]
    terms["launch"] = np.full(len(t.memory), hardware.launch_s * len(graph.launches))
    return Estimates(
        _total(terms.values()), lambda: terms, lambda: resources, None, work_flop, cores,
        again=lambda n: _of_ops(graph, columns, hardware, _cores(n, hardware), work_flop),
    )  # fmt: skip


def _total(terms: Iterable[np.ndarray]) -> np.ndarray:
    """Return the sum of terms as a plain column."""
    column: np.ndarray = plain(reduce(np.add, terms))
    return column
