"""What is known of the library's gemm, for programs of users that are one product.

A program whose only contraction goes over two tensors as gemm does, block by block of the result
and step by step along k, has gemm's tiles under other names. What was measured of gemm, or ships,
holds for it as far as its epilogue does not decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from recommender.analytic import Estimate, estimate, estimate_each
from recommender.cpu.choices import whole_extents
from recommender.errors import EmptySpace
from recommender.hardware import HardwareProfile
from recommender.open_shapes import program_digest
from recommender.recommend import recommend
from recommender.recommendation import Recommendation
from recommender.remembered import Evidence, Known
from recommender.space import SearchSpace
from recommender.workload import Workload
from tilecore.errors import InvalidProblem
from tilecore.graph import Contraction, evaluate
from tilecore.ir.expr import Var, int_value
from tilecore.kernels.definition import KernelDefinition
from tilecore.recommending import LOWERING, OpenProgram, knob_kind
from tilecore.tile_config import KnobValue, TileConfig

COUNT = 5  # configs of gemm that are looked at


def kin_of(
    question: OpenProgram, favourites: Sequence[tuple[SearchSpace, TileConfig]], known: Known
) -> tuple[list[Evidence], list[Evidence]]:
    """Return what goes before the analytic model's choice, and what comes behind it.

    Args:
        question: the program and what is open.
        favourites: spaces of its families, each with the analytic model's config.
        known: what was measured.
    """
    like = {id(space): gemm_like(space, known.gemm, question.cores) for space, _ in favourites}
    first: list[Evidence] = []
    rest: list[Evidence] = []
    for workload in dict.fromkeys(w for w in like.values() if w is not None):
        spaces = [(space, config) for space, config in favourites if like[id(space)] == workload]
        leads = True
        for found in _ranked(workload, spaces[0][0].hardware, known):
            leads = leads and found.source != "analytic"
            if found.source != "analytic":
                told = (_told(question, *place, workload, known.gemm, found) for place in spaces)
                (first if leads else rest).extend(e for e in told if e is not None)
    return first, rest


def _ranked(
    workload: Workload, hardware: HardwareProfile, known: Known
) -> Sequence[Recommendation]:
    """Return what the recommender says of the gemm."""
    problem, definition = dict(workload.problem), known.gemm.on(hardware.kind)
    try:
        return recommend(
            workload, definition, hardware, known.store, top_k=COUNT,
            program_digest=lambda: program_digest(definition, problem),
            toolchain_key=known.toolchain_key,
        )  # fmt: skip
    except EmptySpace:
        return []


def gemm_like(space: SearchSpace, gemm: KernelDefinition, cores: int) -> Workload | None:
    """Return the gemm that a program's product is; None: it is something else."""
    site = space.site
    if site is None or site.a.source is None or site.b.source is None:
        return None
    if site.row_loop is not None or site.depth_loop is not None:
        return None
    written = [
        a.buffer.dtype for op in site.launch.ops for a in op.writes if a.buffer.scope == "global"
    ]
    if len(space.graph.launches) != 1 or len(written) != 1:
        return None
    m, n, k = map(int, whole_extents(site, space.sizes))
    try:
        problem = gemm.parse_problem({
            "m": m, "n": n, "k": k, "dtype": str(site.dtype), "accum_dtype": str(site.accum_dtype),
            "out_dtype": str(written[0]), "transpose_a": site.a.is_transposed,
            "transpose_b": site.b.is_transposed,
        })  # fmt: skip
    except InvalidProblem:  # element types that gemm does not have
        return None
    return Workload.of(gemm.name, problem, cores)


def _told(
    question: OpenProgram, space: SearchSpace, favourite: TileConfig, workload: Workload,
    gemm: KernelDefinition, found: Recommendation,
) -> Evidence | None:  # fmt: skip
    """Return a config of gemm as one of a program's; None: it has none that says so."""
    config = _in_words_of(question, space, favourite, found.config)
    if config is None:
        return None
    columns = {k: np.array([v]) for k, v in config.items()}
    if not _covers(space, columns):
        return None
    problem, hardware, cores = dict(workload.problem), space.hardware, workload.threads
    gemm_space = SearchSpace.outline(gemm.on(hardware.kind), problem, hardware)
    own = estimate(space, columns, threads=cores).at(0)
    (theirs,) = estimate_each(gemm_space, [found.config], threads=cores)
    return Evidence(config, space, _with_times(found, workload, own, own.time_s / theirs.time_s))


def _with_times(
    found: Recommendation, workload: Workload, own: Estimate, ratio: float
) -> Recommendation:
    """Return what is known of a gemm as it is expected of a program that takes so much longer."""
    m, n, k = (dict(workload.problem)[name] for name in "mnk")
    return replace(
        found, time_s=found.time_s * ratio, bound_by=own.bound_by,
        interval_s=(found.interval_s[0] * ratio, found.interval_s[1] * ratio),
        rationale=f"as gemm of {m}x{n}x{k}: {found.rationale.split('; ')[0]}; {own.explain()}",
    )  # fmt: skip


def _in_words_of(
    question: OpenProgram, space: SearchSpace, favourite: TileConfig, config: TileConfig
) -> TileConfig | None:
    """Return a config of gemm by a program's own knobs; None: it leaves no choice that says so."""
    site = space.site
    assert site is not None
    wanted = _by_name(site, config)
    if wanted is None:
        return None
    if space.hardware.kind != "cpu":
        named = {"stages": "num_stages", "threads": "threads"}
        wanted |= {k: config[named[knob_kind(k)]] for k in favourite if knob_kind(k) in named}
    wanted = {**favourite, **wanted}
    allowed = {**question.space, **{k: (v,) for k, v in question.lowering.items()}}
    own = {**question.knobs, **dict.fromkeys(LOWERING)}
    if any(k not in own or v not in allowed.get(k, (v,)) for k, v in wanted.items()):
        return None
    return TileConfig.of(wanted)


def _by_name(site: Contraction, config: TileConfig) -> dict[str, KnobValue] | None:
    """Return what tiles of gemm and of its lowering set; None: tiles of another size are fixed."""
    found: dict[str, KnobValue] = {}
    for name, extent in (("block_M", site.m), ("block_N", site.n), ("block_K", site.k)):
        value = config[name]
        own = extent.name if isinstance(extent, Var) else None
        if own is None and int_value(extent) != value:
            return None
        if own is not None and found.setdefault(own, value) != value:
            return None  # one knob is two extents
    found |= {k: config[k] for k in LOWERING if config.get(k, 0) not in (0, "auto")}
    return found


def _covers(space: SearchSpace, columns: Mapping[str, np.ndarray]) -> bool:
    """Return whether a block per tile of the result goes through all of k, once."""
    site = space.site
    assert site is not None
    whole = space.known(columns)
    extents = [float(np.ravel(evaluate(e, whole))[0]) for e in (site.m, site.n, site.k)]
    m, n, k = np.ceil(np.array(whole_extents(site, whole)) / extents)
    blocks, steps = (float(np.ravel(evaluate(e, whole))[0]) for e in
                     (site.launch.blocks, site.trips))  # fmt: skip
    return bool(blocks == m * n and steps == k)
