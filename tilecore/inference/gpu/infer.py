"""infer(): everything that a program leaves open on a GPU, launch by launch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from tilecore.amd_target import AmdTarget
from tilecore.errors import UnsupportedOnTarget
from tilecore.gpu_target import GpuTarget
from tilecore.inference import layouts
from tilecore.inference.gpu.accesses.banks import crossed
from tilecore.inference.gpu.accesses.vectors import wide_loops
from tilecore.inference.gpu.copies.boxes import running_stores
from tilecore.inference.gpu.copies.pipelining import find_pipelines, unawaited_copies
from tilecore.inference.gpu.distribution import Distribution
from tilecore.inference.gpu.fragments import Fragments, distribute
from tilecore.inference.gpu.limits import check_launch, check_source_launch, check_tiles
from tilecore.inference.gpu.loops import (
    Points,
    accessed_outside_points,
    is_barrier_setup,
    points_of,
)
from tilecore.inference.gpu.memory import Memory, Needs
from tilecore.inference.gpu.options import GpuOptions
from tilecore.inference.gpu.owners import annotated
from tilecore.inference.gpu.plan import (
    GemmPlan,
    GpuLaunchPlan,
    GpuPlan,
    NestPlan,
    Pipeline,
)
from tilecore.inference.gpu.products.choice import plan_gemm
from tilecore.inference.gpu.products.mfma import plan_mfma
from tilecore.inference.gpu.products.overlap import with_overlaps
from tilecore.inference.gpu.products.own_rows import own_rows
from tilecore.inference.gpu.products.pairs import check_pairs, counted_words
from tilecore.inference.gpu.products.quads import plan_quads
from tilecore.inference.gpu.products.registers import excesses
from tilecore.inference.gpu.products.scaled import plan_scaled
from tilecore.inference.gpu.products.tensor_memory import TensorMemory, find_tensor_memory
from tilecore.inference.gpu.products.tensor_products import (
    only_product,
    plan_tensor_product,
    with_reason,
    with_waits,
)
from tilecore.inference.gpu.scratch import folds_across_warps
from tilecore.inference.gpu.shared import keeps_rows, sharing_memory
from tilecore.inference.gpu.threads.barriers import Barriers
from tilecore.inference.gpu.threads.teams import Team, Teams, find_teams, registers_to_trade
from tilecore.inference.gpu.threads.torn import torn_branches
from tilecore.inference.uses import Context, enter
from tilecore.ir import nodes
from tilecore.ir.analysis import covers_whole
from tilecore.ir.live_out import left_behind
from tilecore.ir.nodes import NOTE, Buffer, For, Gemm, KernelLaunch, PrimFunc, SourceLaunch, Stmt
from tilecore.ir.visitor import buffers_of, children, regions, walk


def infer(func: PrimFunc, target: GpuTarget, options: GpuOptions) -> GpuPlan:
    """Return the plan of a program.

    Raises:
        InvalidConfig: more threads or shared memory than a block may have (TC303).
        UnsupportedOnTarget: a statement that GPUs cannot run (TC302).
    """
    launches = [s for s in walk(func.body) if isinstance(s, KernelLaunch)]
    for stmt in walk(func.body):
        if isinstance(stmt, SourceLaunch):
            check_source_launch(stmt, target)
    return GpuPlan(func, {launch: _plan(launch, target, options) for launch in launches})


def _plan(launch: KernelLaunch, target: GpuTarget, options: GpuOptions) -> GpuLaunchPlan:
    threads = check_launch(launch, target)
    layouts.check(launch)
    teams = find_teams(launch, threads, target)
    tiles = [s.buffer for s in walk(launch.body) if isinstance(s, nodes.Alloc)]
    check_tiles(tiles, target)
    fragments = _fragments(launch, tiles, teams, target)
    tensor = find_tensor_memory(launch, teams, target, options)
    check_pairs(launch, target, tensor, options)
    _share_between_teams(launch, teams, fragments)
    viewed = {t.base for t in tiles if t.base is not None and not keeps_rows(t)}
    plain = {s.src.buffer.root for s in walk(launch.body) if isinstance(s, nodes.ChunkCopy)}
    work = _share_out(launch, teams, target, fragments, options, plain, tensor)
    memory = _needs(launch, tiles, viewed, plain, teams, target, fragments, work, tensor).fit(
        find_pipelines(launch, work.nests, target)
    )
    _check_single_copies(launch, teams, memory, target)
    gemms = with_waits(work.gemms, memory.pipelines)
    meeting = {s for s, n in work.nests.items() if folds_across_warps(n, target.threads_per_warp)}
    own = own_rows(launch, teams, work.nests, memory.places, memory.stores, memory.updates)
    sharing = sharing_memory(memory.places) | tensor.memory
    barriers, ends = Barriers(
        launch, sharing, memory.pipelines,
        teams, {*memory.loads, *memory.multicasts}, meeting,
        alone=_run_by_one_thread(memory.pipelines, gemms),
        running={s for s, product in gemms.items() if product.kind == "wgmma"},
        apart=set() if own is None else {own.stored.src.buffer},
    ).find()  # fmt: skip
    nests = {
        s: n for s, n in work.nests.items() if not isinstance(s, For) or not _meets(s, barriers)
    }
    pipelines, why_not = with_overlaps(
        memory.pipelines, gemms, work.held, barriers | meeting, teams.whole.count
    )
    moved = {*memory.stores, *memory.loads, *memory.multicasts, *tensor.transfers}
    trade = registers_to_trade(launch, teams, target)
    notes = [f"{t.name}: kept in shared memory ({why})" for t, why in fragments.shared.items()]
    if isinstance(trade, str):
        notes.append(f"registers stay where they are: {trade}")
    notes += [s.value for s in walk(launch.body) if isinstance(s, nodes.Annotate) and s.key == NOTE]
    notes += [*why_not, *excesses(work.held, teams.whole.count, target)]
    if options.fast_math and target.kind == "cuda":
        notes.append("fast math: functions and divisions of float32 are approximate")
    return GpuLaunchPlan(
        launch=launch, threads=threads, teams=teams, fragments=work.held, shared=memory.places,
        nests=nests, gemms=gemms, pipelines=pipelines,
        stores=memory.stores if own is None else {**memory.stores, own.stored: own.box},
        loads=memory.loads, updates=memory.updates, multicasts=memory.multicasts,
        running=running_stores(launch, memory.stores, memory.updates, teams),
        unawaited=unawaited_copies(launch, nests, pipelines.values(), moved, target),
        registers=trade is True, barriers=barriers, ends=ends,
        own_rows=own, tile_bytes=memory.tile_bytes, scratch=memory.scratch,
        shared_bytes=memory.bytes,
        tensor_tiles=tensor.tiles, transfers=tensor.transfers, tensor_columns=tensor.columns,
        notes=(*notes, *tensor.notes), torn=torn_branches(launch, threads, teams, sharing),
    )  # fmt: skip


def _fragments(
    launch: KernelLaunch, tiles: list[Buffer], teams: Teams, target: GpuTarget
) -> Fragments:
    """Return what is known of fragments before anything is shared out."""
    found = Fragments(
        teams.whole.count, target.threads_per_warp, target.matrix_moves,
        spread=frozenset(_spread(launch, tiles)),
        variables=frozenset(t for t in tiles if t.is_var and not launch.thread_vars),
        left={} if launch.thread_vars else left_behind(launch.body), kin=_kin(tiles),
    )  # fmt: skip
    for tile in _not_in_registers(launch, tiles, found):
        found.keep_in_memory(tile, "elements are accessed one by one, or through views")
    return found


def _kin(tiles: Iterable[Buffer]) -> dict[Buffer, frozenset[Buffer]]:
    """Return the fragments that are one memory, by each of them: elements of one type in a row."""
    families: dict[Buffer, set[Buffer]] = {}
    for tile in tiles:
        if tile.base is not None and tile.scope == tile.base.scope == "fragment":
            families.setdefault(tile.root, {tile.root}).add(tile)
    return {
        tile: frozenset(family - {tile})
        for root, family in families.items()
        if all(_is_reshaped(tile, root) for tile in family)
        for tile in family
    }


def _is_reshaped(tile: Buffer, root: Buffer) -> bool:
    """Return whether a tile has the elements of another, row-major, in a shape of its own."""
    shape, whole = tile.static_shape, root.static_shape
    if shape is None or whole is None or tile.strides is not None:
        return False
    return tile.dtype == root.dtype and math.prod(shape) == math.prod(whole)


@dataclass(frozen=True, slots=True)
class _Work:
    """What the threads of a launch share out, and how.

    Attributes:
        statements: all of them, but for what moves to and from tensor memory.
        gemms, nests: how products and the other statements run.
        held: who holds the elements of fragments.
    """

    statements: Sequence[Points]
    gemms: Mapping[Stmt, GemmPlan]
    nests: Mapping[Stmt, NestPlan]
    held: Mapping[Buffer, Distribution]


def _share_out(
    launch: KernelLaunch,
    teams: Teams,
    target: GpuTarget,
    fragments: Fragments,
    options: GpuOptions,
    plain: Set[Buffer],
    tensor: TensorMemory,
) -> _Work:
    """Return how the threads run what they share; anew for each fragment that finds no place."""
    found = _statements(launch.body, enter(launch, Context()), target)
    statements = [p for p in found if p.stmt not in tensor.transfers]
    while True:
        before = len(fragments.shared)
        gemms = _products(launch, teams, target, fragments, options, plain, tensor)
        nests: dict[Stmt, NestPlan] = {}
        held: dict[Buffer, Distribution] = {}
        for team in (teams.whole, *teams.all):
            own = replace(
                fragments, threads=team.count, held={}, folded={}, refused=set(),
                asked=annotated(launch, team.count),
            )  # fmt: skip
            mine = [p for p in statements if teams.team(p.stmt) == team]
            products = [g for s, g in gemms.items() if teams.team(s) == team]
            moved = tensor.wanted(s for s in tensor.transfers if teams.team(s) == team)
            nests |= distribute(mine, products, own, moved)
            held |= own.held
        if len(fragments.shared) == before:
            return _Work(statements, gemms, nests | wide_loops(launch, target), held)


def _needs(
    launch: KernelLaunch,
    tiles: list[Buffer],
    viewed: Set[Buffer],
    plain: Set[Buffer],
    teams: Teams,
    target: GpuTarget,
    fragments: Fragments,
    work: _Work,
    tensor: TensorMemory,
) -> Needs:
    """Return what of a launch wants shared memory."""
    gemms, nests = tuple(work.gemms.values()), tuple(work.nests.values())
    here = tuple(
        t for t in tiles if t.base is None and t not in tensor.tiles and _in_shared(t, fragments)
    )
    return Needs(
        launch=launch, target=target, teams=teams, nests=nests, gemms=gemms, tiles=here,
        viewed=frozenset(viewed), plain=frozenset(plain),
        staging=frozenset(_staging(work.statements, gemms, tensor) | _moved_as_matrices(nests)),
        crossed=frozenset(crossed(work.nests, _of_nests_alone(launch, here, plain))),
        tensor_words=tensor.words(gemms) + counted_words(launch), outside=tensor.notes,
    )  # fmt: skip


def _of_nests_alone(
    launch: KernelLaunch, tiles: Iterable[Buffer], plain: Set[Buffer]
) -> Iterator[Buffer]:
    """Yield the tiles that only statements touch whose points the threads share out."""
    outside = accessed_outside_points(launch.body) | plain
    for stmt in walk(launch.body):
        if isinstance(stmt, nodes.ClusterCopy):
            outside |= buffers_of(stmt)
        elif not isinstance(stmt, (nodes.Copy, nodes.Fill, nodes.Reduce, nodes.Scan)):
            outside |= {region.buffer for region in regions(stmt)}
        elif isinstance(stmt, nodes.Copy) and stmt.barrier is not None:
            outside.add(stmt.dst.buffer)
    roots = {buffer.root for buffer in outside}
    for tile in tiles:
        if tile not in roots and tile.arrive_counts is None and not tile.dtype.is_packed:
            yield tile


def _check_single_copies(
    launch: KernelLaunch, teams: Teams, memory: Memory, target: GpuTarget
) -> None:
    """Check that copies in branches of one thread are boxes: no thread copies a tile alone."""
    for stmt in walk(launch.body):
        is_single = isinstance(stmt, nodes.Copy) and id(stmt) in teams.single
        if is_single and stmt not in memory.loads:
            has = "cannot bring this tile" if target.has_tma else "comes with sm_90"
            raise UnsupportedOnTarget(
                what="a Copy in a branch of one thread", target=target.name, span=stmt.span,
                reason=f"the tensor memory accelerator, which one thread may ask, {has}",
                hint="let a whole warp copy: `if tx < 32:` in place of `if tx == 0:`; boxes need "
                "rows of a multiple of 16 bytes, and tiles at multiples of 128 bytes",
            )  # fmt: skip


def _run_by_one_thread(
    pipelines: Mapping[Stmt, Pipeline], gemms: Mapping[Stmt, GemmPlan]
) -> dict[Stmt, tuple[Stmt, ...]]:
    """Return the pipelines that do nothing but a product in tensor memory, with what they do."""
    found = {s: only_product(p, gemms) for s, p in pipelines.items() if p.boxes}
    return {s: (*done[0], done[1]) for s, done in found.items() if done is not None}


def _meets(loop: For, barriers: Set[Stmt]) -> bool:
    """Return whether the threads meet inside a loop: what it moves is not moved at once."""
    return any(s in barriers for s in walk(loop.body))


def _in_shared(tile: Buffer, fragments: Fragments) -> bool:
    return tile.scope == "shared" or (tile in fragments.spread and tile in fragments.shared)


def _spread(launch: KernelLaunch, tiles: list[Buffer]) -> set[Buffer]:
    """Return the tiles whose elements are spread over threads.

    Those are fragments, and local arrays that the points of nests share in a program that knows
    nothing of threads.
    """
    found = {t for t in tiles if t.scope == "fragment"}
    if launch.thread_vars:
        return found
    for nest in walk(launch.body):
        if isinstance(nest, nodes.Parallel) and nest.loop_vars:
            own = {s.buffer for s in walk(nest) if isinstance(s, nodes.Alloc)}
            found |= {b for b in buffers_of(nest) - own if b.scope == "local" and not b.is_var}
        found |= {r.buffer for r in regions(nest) if r.buffer.scope == "local"}
    return found


def _not_in_registers(
    launch: KernelLaunch, tiles: list[Buffer], fragments: Fragments
) -> set[Buffer]:
    """Return the fragments that no distribution can serve."""
    single = accessed_outside_points(launch.body)
    found = {t for t in tiles if t in single or t.reducer is not None}
    for stmt in walk(launch.body):
        if isinstance(stmt, Gemm):  # instructions know nothing of parts of fragments
            found |= {r.buffer for r in (stmt.a, stmt.b, stmt.c) if not covers_whole(r)}
    for tile in tiles:
        if tile.base is not None and tile not in fragments.kin:
            found |= {tile, tile.base}
    return found & fragments.spread


def _statements(stmt: Stmt, context: Context, target: GpuTarget) -> Iterator[Points]:
    """Yield the statements that threads share out, with what surrounds them."""
    if is_barrier_setup(stmt):
        return
    points = points_of(stmt, context)
    if points is not None:
        yield replace(points, added_bytes=target.added_bytes)
        return
    if isinstance(stmt, (nodes.Parallel, nodes.Copy, nodes.Fill, nodes.Reduce, nodes.Scan)):
        raise UnsupportedOnTarget(
            what=f"a {type(stmt).__name__} of extents known only at run time", target=target.name,
            reason="its points are spread over threads when it is compiled", span=stmt.span,
            hint="loop over the largest extent and put an if inside",
        )  # fmt: skip
    inner = context if isinstance(stmt, nodes.Seq) else enter(stmt, context)
    for child in children(stmt):
        yield from _statements(child, inner, target)
        if isinstance(child, nodes.Let):
            inner = replace(inner, lets={**inner.lets, child.var: child.value})


def _share_between_teams(launch: KernelLaunch, teams: Teams, fragments: Fragments) -> None:
    """Keep in shared memory the fragments that more than one team uses."""
    users: dict[Buffer, Team] = {}
    for stmt in walk(launch.body):
        if isinstance(stmt, nodes.Alloc) or any(True for _ in children(stmt)):
            continue
        for buffer in buffers_of(stmt) & fragments.spread:
            if users.setdefault(buffer.root, teams.team(stmt)) != teams.team(stmt):
                fragments.keep_in_memory(buffer, "several roles of warps use it")


def _products(
    launch: KernelLaunch,
    teams: Teams,
    target: GpuTarget,
    fragments: Fragments,
    options: GpuOptions,
    plain: Set[Buffer],
    tensor: TensorMemory,
) -> dict[Stmt, GemmPlan]:
    """Return the plan of each product; operands of fma lie in shared memory."""
    found: dict[Stmt, GemmPlan] = {}
    for stmt in walk(launch.body):
        if not isinstance(stmt, Gemm):
            continue
        team, held = teams.team(stmt), _held(stmt, fragments)
        if stmt.c.buffer in tensor.tiles:
            plan = plan_tensor_product(stmt, team)
        else:
            plan = _plan_of_warps(stmt, team, target, held, options, plain)
        if plan.kind == "fma":
            for region, is_held in ((stmt.a, held[0]), (stmt.b, held[1])):
                if is_held:
                    fragments.shared[region.buffer] = "an operand of scalar multiply-adds"
        found[stmt] = with_reason(plan, launch, options, target) if target.has_tcgen05 else plan
    if isinstance(target, AmdTarget):
        sums: dict[Buffer, set[Distribution]] = {}
        for plan in found.values():
            sums.setdefault(plan.stmt.c.buffer, set()).add(plan.c)
        for stmt in [s for s in found if isinstance(s, Gemm) and len(sums[s.c.buffer]) > 1]:
            held = _held(stmt, fragments)
            found[stmt] = plan_mfma(stmt, teams.team(stmt), target, held, deals=False)
    return found


def _plan_of_warps(
    gemm: Gemm,
    team: Team,
    target: GpuTarget,
    held: tuple[bool, bool, bool],
    options: GpuOptions,
    plain: Set[Buffer],
) -> GemmPlan:
    """Return the plan of a product with sums in registers."""
    if gemm.in_lanes:
        raise UnsupportedOnTarget(
            what="a product with factors in tensor memory", target=target.name, span=gemm.span,
            reason="a pass has kept it for an instruction that it does not suit, a fault of ours",
        )  # fmt: skip
    if gemm.factors:
        return plan_scaled(gemm, team, held)
    if isinstance(target, AmdTarget):
        return plan_mfma(gemm, team, target, held)
    if target.multiplies_by_quads:
        return plan_quads(gemm, team, target, held)
    return plan_gemm(gemm, team, target, held, options, plain)


def _held(gemm: Gemm, fragments: Fragments) -> tuple[bool, bool, bool]:
    """Return whether A, B and C are fragments."""
    a, b, c = (fragments.is_register(r.buffer) for r in (gemm.a, gemm.b, gemm.c))
    return a, b, c


def _staging(
    statements: Iterable[Points], gemms: Iterable[GemmPlan], tensor: TensorMemory
) -> set[Buffer]:
    """Return the shared tiles of two axes that sums are written to."""
    sums = {g.stmt.c.buffer for g in gemms if g.kind != "fma"}
    sums |= {buffer for buffer, _ in tensor.wanted(tensor.transfers)}
    found: set[Buffer] = set()
    for points in statements:
        if any(a.buffer in sums and not a.is_store for a in points.accesses):
            found |= {
                a.buffer.root
                for a in points.accesses
                if a.is_store and a.buffer.scope == "shared" and a.buffer.ndim == 2
            }
    return found


def _moved_as_matrices(nests: Iterable[NestPlan]) -> set[Buffer]:
    """Return the shared tiles of which warps load or store rows of 16 bytes."""
    moved = [n.points.accesses[n.matrices.access] for n in nests if n.matrices is not None]
    return {access.buffer.root for access in moved}
