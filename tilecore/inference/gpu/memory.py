"""The shared memory of a block: how tiles lie in it, what comes in boxes, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilecore.errors import InvalidConfig
from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.copies.boxes import loads_of, multicasts_of, stores_of, with_boxes
from tilecore.inference.gpu.copies.pipelining import (
    with_one_tile,
    without_gathers,
    without_single_tiles,
)
from tilecore.inference.gpu.copies.updates import updates_of
from tilecore.inference.gpu.plan import (
    CHUNK_BYTES,
    Box,
    BoxUpdate,
    GemmPlan,
    NestPlan,
    Pipeline,
    SharedLayout,
)
from tilecore.inference.gpu.scratch import BARRIER_BYTES, barrier_bytes, told
from tilecore.inference.gpu.shared import assign_places, lay_out
from tilecore.inference.gpu.threads.teams import Team, Teams, side_by_side
from tilecore.ir.nodes import Buffer, ClusterCopy, KernelLaunch, Stmt

FACTORS = (2, 4, 8)  # by which tiles that do not fit might be smaller
MIN_STEP, MIN_BLOCK = 16, 32  # extents of a product that are worth naming


@dataclass(frozen=True, slots=True)
class Memory:
    """What a block has in shared memory; see ``GpuLaunchPlan``."""

    pipelines: Mapping[Stmt, Pipeline]
    places: Mapping[Buffer, SharedLayout]
    tile_bytes: int
    scratch: Mapping[Team, int]
    bytes: int
    stores: Mapping[Stmt, Box] = field(default_factory=dict)
    loads: Mapping[Stmt, Box] = field(default_factory=dict)
    updates: Mapping[Stmt, BoxUpdate] = field(default_factory=dict)
    multicasts: Mapping[Stmt, Box] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What decides about the shared memory of a launch.

    ``viewed``: tiles that views see in another shape; ``plain``: those that must lie row by row;
    ``staging``: those that take sums; ``crossed``: those whose banks are better used where they
    are swizzled; ``tensor_words``: of 64 bits, which go with tensor memory; ``outside``: why tiles
    that ask for it do not lie there.
    """

    launch: KernelLaunch
    target: GpuTarget
    teams: Teams
    nests: tuple[NestPlan, ...]
    gemms: tuple[GemmPlan, ...]
    tiles: tuple[Buffer, ...]
    viewed: frozenset[Buffer]
    plain: frozenset[Buffer]
    staging: frozenset[Buffer]
    crossed: frozenset[Buffer]
    tensor_words: int = 0
    outside: tuple[str, ...] = ()

    def fit(self, pipelines: Mapping[Stmt, Pipeline]) -> Memory:
        """Return the shared memory of a block.

        Raises:
            InvalidConfig: a block may not have that much; the hint says what would fit (TC303).
        """
        found = self.place(pipelines)
        if found.bytes > self.target.shared_per_block and self.crossed:
            return replace(self, crossed=frozenset()).fit(pipelines)  # swizzles begin further apart
        if found.bytes > self.target.shared_per_block and any(
            p.gathers for p in pipelines.values()
        ):
            return self.fit(without_gathers(pipelines))
        if found.bytes > self.target.shared_per_block:
            fewer = with_one_tile(found.pipelines)
            found = found if fewer == found.pipelines else self.place(fewer)
        if found.bytes > self.target.shared_per_block:
            raise self._too_much(found)
        return found

    def place(self, pipelines: Mapping[Stmt, Pipeline]) -> Memory:
        """Return the shared memory of a block, whether it fits or not."""
        stages = {tile: p.stages for p in pipelines.values() for tile in p.tiles}
        swizzled = set(self.staging | self.crossed)
        layouts = lay_out(
            self.tiles, self.gemms, stages, set(self.viewed), swizzled, set(self.plain)
        )
        stores: Mapping[Stmt, Box] = {}
        loads: Mapping[Stmt, Box] = {}
        updates: Mapping[Stmt, BoxUpdate] = {}
        multicasts: Mapping[Stmt, Box] = {}
        if self.target.has_tma:
            boxed = with_boxes(self.launch, pipelines, layouts, self.target)
            pipelines = without_single_tiles(boxed)
            if len(pipelines) < len(boxed):  # others may do without them
                pipelines = with_boxes(self.launch, pipelines, layouts, self.target)
            stores = stores_of(self.launch, layouts, stages)
            loads = loads_of(self.launch, layouts)
            updates = updates_of(self.launch, layouts, stages)
            multicasts = multicasts_of(self.launch, layouts)
        beside = side_by_side(self.launch.body, self.teams)
        places, end = assign_places(self.launch.body, layouts, pipelines.values(), beside)
        end = -(-end // CHUNK_BYTES) * CHUNK_BYTES
        scratch, more = told(self.launch, self.nests, self.teams, self.target.threads_per_warp)
        more += barrier_bytes(pipelines.values())
        waited = sum(isinstance(s, ClusterCopy) and s.barrier is None for s in multicasts)
        more += (self.tensor_words + waited) * BARRIER_BYTES
        return Memory(
            pipelines, places, end, scratch, end + more, stores, loads, updates, multicasts
        )

    def _too_much(self, found: Memory) -> InvalidConfig:
        largest = max(found.places, key=lambda tile: found.places[tile].bytes)
        layout, target = found.places[largest], self.target
        return InvalidConfig(
            knob="shared memory", value=f"{found.bytes} B", span=self.launch.span,
            expected=f"at most {target.shared_per_block} B in a block of {target.name}",
            hint="".join(f"{why}; " for why in self.outside)
            + f"`{largest.name}` takes {layout.bytes} B in {layout.stages} stages; "
            + (self._with_fewer_stages(found) or self._with_smaller_tiles(found, largest)),
        )  # fmt: skip

    def _with_fewer_stages(self, found: Memory) -> str:
        """Return which num_stages would fit, or ""."""
        most = max((p.stages for p in found.pipelines.values()), default=1)
        for stages in range(most - 1, 0, -1):
            fewer = {
                s: replace(p, stages=min(stages, p.stages)) for s, p in found.pipelines.items()
            }
            size = self.place(fewer).bytes
            if size <= self.target.shared_per_block:
                return f"num_stages={stages} instead of {most} needs {size} B, which fits"
        return ""

    def _with_smaller_tiles(self, found: Memory, largest: Buffer) -> str:
        """Return which tiles would fit: of a product, by its extents, else of the largest tile."""
        limit, places = self.target.shared_per_block, found.places
        if len(self.gemms) == 1:
            (plan,) = self.gemms
            operands = {r.buffer.root for r in (plan.stmt.a, plan.stmt.b)} & places.keys()
            taken = sum(places[t].bytes for t in operands)
            rest = max(
                [found.bytes - taken, *(p.bytes for t, p in places.items() if t not in operands)]
            )
            for words, least in ((_step, MIN_STEP), (_block, MIN_BLOCK)):
                for factor in FACTORS:
                    size = rest + taken // factor
                    if size <= limit and words(plan, factor)[1] >= least:
                        return f"{words(plan, factor)[0]} needs about {size} B, which fits"
        room = limit - (found.bytes - places[largest].bytes)
        if room <= 0:
            return "smaller tiles, or tiles of a narrower type"
        return f"there is room for one of {room} B beside the other tiles"


def _step(plan: GemmPlan, factor: int) -> tuple[str, int]:
    """Return (a product of fewer elements along K at a time, in words; how many they are)."""
    k = plan.size[2]
    return f"K in steps of {k // factor} instead of {k}", k // factor if k % factor == 0 else 0


def _block(plan: GemmPlan, factor: int) -> tuple[str, int]:
    """Return (a product of fewer rows and columns, in words; the smaller count of the two)."""
    m, n, _ = plan.size
    is_whole = m % factor == 0 and n % factor == 0
    words = f"a block of {m // factor} x {n // factor} instead of {m} x {n}"
    return words, min(m, n) // factor if is_whole else 0
