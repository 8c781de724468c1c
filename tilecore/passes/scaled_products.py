"""Products of elements times factors: for a matrix unit that takes both, or in plain statements.

A product for the unit (``inference/gpu/products`` says which) reads tiles
whose bytes hold two elements along K, as the tensors that they are copied from do. These tiles and
tensors become bytes: everything after this pass copies and places bytes and knows nothing of halves
of them.

Where products go to tensor memory, those of a launch all do or none: what of it lies there is found
out on the rewritten program.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from tilecore.errors import UnsupportedOnTarget
from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.limits import check_launch
from tilecore.inference.gpu.options import GpuOptions
from tilecore.inference.gpu.products.scaled import why_not
from tilecore.inference.gpu.products.tensor_memory import find_tensor_memory
from tilecore.inference.gpu.products.tensor_products import refusal
from tilecore.inference.gpu.products.tensor_scaled import form_misfit
from tilecore.inference.gpu.threads.teams import find_teams
from tilecore.ir import nodes
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Binary, Const, Expr, binary, const, int_value
from tilecore.ir.nodes import Buffer, Copy, Gemm, KernelLaunch, PrimFunc, Region, Seq, Stmt
from tilecore.ir.plain.scaled_gemm import has_factors, sides_of, without_factors
from tilecore.ir.substitute import Rebuilder
from tilecore.ir.visitor import buffers_of, children, loads, per_launch, regions, walk
from tilecore.passes.factor_lanes import InLanes

BYTE = DType("uint8")
EVERYWHERE = (Seq, KernelLaunch, nodes.For)  # what all threads of a block run alike


def run(func: PrimFunc, target: GpuTarget, options: GpuOptions) -> PrimFunc:
    """Return ``func`` with products for the target's unit, and plain statements for the others."""
    if not any(has_factors(s) for s in walk(func.body)):
        return func
    if target.has_tcgen05:
        return _for_tensor_memory(func, target, options)
    found = _Candidates.of(func, target)
    _refuse_pairs(found.reasons, target)
    return _rewritten(func, found, notes=target.scales_blocks)


def _rewritten(func: PrimFunc, found: _Candidates, *, notes: bool) -> PrimFunc:
    """Return ``func`` with the products that are kept, and plain statements for the others."""
    copies: set[Stmt] = set()
    for launch in walk(func.body):
        if isinstance(launch, KernelLaunch):
            stmts = list(walk(launch))
            if any(isinstance(s, Gemm) and s.in_lanes and s in found.kept for s in stmts):
                copies |= {s for s in stmts if isinstance(s, nodes.ChunkCopy)}
    noted = per_launch(func, lambda launch: _noted(launch, found.reasons)) if notes else func
    made = without_factors(noted, frozenset({*found.kept, *copies}))
    return _Bytes(found.bytes_of).func(made) if found.kept else made


def _for_tensor_memory(func: PrimFunc, target: GpuTarget, options: GpuOptions) -> PrimFunc:
    """Return ``func`` with the products of each launch in tensor memory, or with none of them."""
    refused: dict[int, str] = {}
    while True:
        found = _Candidates.of(func, target, refused)
        made = _rewritten(func, found, notes=True)
        made = replace(made, body=InLanes().visit(made.body))
        launches = [s for s in walk(made.body) if isinstance(s, KernelLaunch)]
        more = {
            number: reason
            for number, launch in enumerate(launches)
            if (reason := _misplaced(launch, target, options))
        }
        if not more:
            _refuse_pairs(found.reasons, target)
            return made
        refused |= more


def _refuse_pairs(reasons: Mapping[Gemm, str], target: GpuTarget) -> None:
    """Refuse products of two blocks that do not suit: plain statements know of one alone.

    Raises:
        UnsupportedOnTarget: there is one (TC302).
    """
    for gemm, reason in reasons.items():
        if gemm.in_pair:
            raise UnsupportedOnTarget(
                what="T.tcgen05_gemm_blockscaled(use_2cta=True)", target=target.name,
                reason=reason, span=gemm.span,
                hint="without use_2cta, with all of B in each block, blocks multiply alone",
            )  # fmt: skip


def _misplaced(launch: KernelLaunch, target: GpuTarget, options: GpuOptions) -> str:
    """Return why the products with factors of a launch cannot lie in tensor memory, or ""."""
    gemms = [s for s in walk(launch.body) if isinstance(s, Gemm) and s.factors]
    if not gemms:
        return ""
    teams = find_teams(launch, check_launch(launch, target), target)
    reasons = find_tensor_memory(launch, teams, target, options).reasons
    if reasons:
        return next(iter(reasons.values()))
    own = (refusal(g, launch, options, target) for g in gemms if not g.c.buffer.in_tensor_memory)
    return next((reason for reason in own if reason), "")


@dataclass(slots=True)
class _Candidates:
    """What the unit may multiply.

    Attributes:
        kept: the products, in the order of the program.
        uses: the statements that use a buffer, but for those around them.
        reasons: why the unit cannot multiply others.
    """

    kept: dict[Gemm, None]
    uses: Mapping[Buffer, list[Stmt]]
    reasons: dict[Gemm, str]

    @classmethod
    def of(
        cls, func: PrimFunc, target: GpuTarget, refused: Mapping[int, str] = MappingProxyType({})
    ) -> _Candidates:
        """Return the products that suit, with tiles and tensors that nothing else uses.

        ``refused``: the launches, by number, of which none does, and why.
        """
        made = cls({}, _uses(func), {})
        launches = [s for s in walk(func.body) if isinstance(s, KernelLaunch)]
        for number, launch in enumerate(launches):
            by_all = set(_run_by_all(launch))
            for gemm in walk(launch.body):
                if isinstance(gemm, Gemm) and gemm.factors:
                    reason = refused.get(number) or _why_not(gemm, launch, target)
                    if not reason and gemm not in by_all and not gemm.in_lanes:
                        reason = "it stands in a branch"
                    made._note(gemm, reason)
        while made._drop_one() or (target.has_tcgen05 and made._drop_beside(launches)):
            pass
        return made

    def _drop_beside(self, launches: Iterable[KernelLaunch]) -> bool:
        """Drop a product of a launch in which others do not suit."""
        for launch in launches:
            mine = [s for s in walk(launch.body) if isinstance(s, Gemm) and s.factors]
            reason = next((self.reasons[g] for g in mine if g in self.reasons), None)
            kept = next((g for g in mine if g in self.kept), None)
            if reason is not None and kept is not None:
                del self.kept[kept]
                self.reasons[kept] = reason
                return True
        return False

    def _note(self, gemm: Gemm, reason: str) -> None:
        if reason:
            self.reasons[gemm] = reason
        else:
            self.kept[gemm] = None

    @property
    def tiles(self) -> set[Buffer]:
        """The tiles of operands that hold two elements to a byte."""
        operands = (r.buffer for g in self.kept for r in (g.a, g.b))
        return {tile for tile in operands if tile.dtype.is_packed}

    @property
    def bytes_of(self) -> dict[Buffer, Buffer]:
        """What takes the place of each tile, and of each tensor that one is copied from."""
        tiles = self.tiles
        return {buffer: _as_bytes(buffer) for buffer in (*tiles, *self._tensors(tiles))}

    def _tensors(self, tiles: Collection[Buffer]) -> set[Buffer]:
        stmts = (s for tile in tiles for s in self.uses[tile])
        return {s.src.buffer for s in stmts if isinstance(s, Copy)}

    def _drop_one(self) -> bool:
        """Drop a product of which a tile, or a tensor behind it, has other uses."""
        tiles = self.tiles
        for gemm in self.kept:
            for tile in (gemm.a.buffer, gemm.b.buffer):
                reason = self._fault(tile, tiles) if tile in tiles else ""
                if reason:
                    del self.kept[gemm]
                    self.reasons[gemm] = reason
                    return True
        return False

    def _fault(self, tile: Buffer, tiles: Collection[Buffer]) -> str:
        """Return why a tile, or a tensor that it is copied from, cannot be bytes, or ""."""
        for stmt in self.uses[tile]:
            match stmt:
                case nodes.Alloc(buffer=buffer) if buffer is tile and _has_bytes(tile):
                    continue
                case nodes.Fill(value=Const(value=0)) if _is_halved(stmt.dst):
                    continue
                case Gemm() if stmt in self.kept and _is_halved(stmt.a) and _is_halved(stmt.b):
                    continue
                case Copy(src=src, dst=dst) if (
                    dst.buffer is tile
                    and src.buffer.dtype == tile.dtype
                    and _is_halved(src)
                    and _is_halved(dst)
                ):
                    if reason := self._fault_of_tensor(src.buffer, tiles):
                        return reason
                case _:
                    return f"`{tile.name}` is used by {_name(stmt)} as elements of 4 bits"
        return ""

    def _fault_of_tensor(self, tensor: Buffer, tiles: Collection[Buffer]) -> str:
        if tensor.scope != "global" or tensor.base is not None or tensor.address is not None:
            return f"`{tensor.name}` is no tensor of the caller's"
        for stmt in self.uses[tensor]:
            if not isinstance(stmt, Copy) or stmt.dst.buffer not in tiles:
                return f"`{tensor.name}` is used by {_name(stmt)} as elements of 4 bits"
        return "" if _has_bytes(tensor) else f"`{tensor.name}` has odd rows"


def _why_not(gemm: Gemm, launch: KernelLaunch, target: GpuTarget) -> str:
    """Return why no unit of the target multiplies elements and factors of a product, or ""."""
    if not target.has_tcgen05:
        return why_not(gemm, launch, target)
    return form_misfit(gemm) or ("" if gemm.in_lanes else _rows_misfit(gemm))


def _rows_misfit(gemm: Gemm) -> str:
    """Return why factors in shared memory cannot be copied to tensor memory, or ""."""
    for side, factors in zip(sides_of(gemm), gemm.factors, strict=True):
        if int_value(side.rows) is None or int_value(side.depth) is None:
            return "the extents of its tiles are known only at run time"
        if factors.buffer.scope != "shared":
            return f"the factors in `{factors.buffer.name}` do not lie in shared memory"
    return ""


def _name(stmt: Stmt) -> str:
    return type(stmt).__name__


def _uses(func: PrimFunc) -> dict[Buffer, list[Stmt]]:
    """Return the statements that use each buffer themselves."""
    found: dict[Buffer, list[Stmt]] = {}
    for stmt in walk(func.body):
        used = buffers_of(stmt) if not children(stmt) else set()
        used |= {r.buffer for r in regions(stmt)} | {e.buffer for e in loads(stmt)}
        if isinstance(stmt, nodes.ClusterCopy):
            used |= buffers_of(stmt)
        if isinstance(stmt, nodes.Pad):
            used.add(stmt.buffer)
        if isinstance(stmt, nodes.Annotate) and isinstance(stmt.value, Mapping):
            used |= {key for key in stmt.value if isinstance(key, Buffer)}
        for buffer in used:
            found.setdefault(buffer, []).append(stmt)
    return found


def _run_by_all(stmt: Stmt) -> Iterator[Stmt]:
    """Yield the statements that stand in no branch."""
    yield stmt
    if isinstance(stmt, EVERYWHERE):
        for child in children(stmt):
            yield from _run_by_all(child)


def _half(expr: Expr) -> Expr | None:
    """Return half of an integer that is even by its form, or None."""
    match expr:
        case Const(value=value):
            return None if int(value) % 2 else const(int(value) // 2, str(expr.dtype))
        case Binary(op="mul", a=a, b=b):
            for one, other in ((b, a), (a, b)):
                if (halved := _half(one)) is not None:
                    return binary("mul", other, halved)
            return None
        case Binary(op="add" | "sub" | "min" | "max", a=a, b=b):
            left, right = _half(a), _half(b)
            return None if left is None or right is None else binary(expr.op, left, right)
        case _:
            return None


def _is_halved(region: Region) -> bool:
    """Return whether a region begins and ends with bytes."""
    return _half(region.offsets[-1]) is not None and _half(region.extents[-1]) is not None


def _has_bytes(buffer: Buffer) -> bool:
    """Return whether the rows of a buffer are bytes."""
    last = int_value(buffer.shape[-1])
    return (last is None or last % 2 == 0) and buffer.reducer is None and buffer.lanes == 1


def _as_bytes(buffer: Buffer) -> Buffer:
    """Return a buffer of the bytes of another one."""
    shape = (*buffer.shape[:-1], _halves(buffer.shape[-1]))
    strides = buffer.strides
    if strides is not None:
        strides = (*(_halves(s) for s in strides[:-1]), strides[-1])
    return replace(buffer, shape=shape, strides=strides, dtype=BYTE)


def _halves(extent: Expr) -> Expr:
    return _half(extent) or binary("floordiv", extent, 2)


class _Bytes(Rebuilder):
    """Puts bytes in the place of tiles and tensors of two elements to a byte."""

    def __init__(self, bytes_of: Mapping[Buffer, Buffer]) -> None:
        super().__init__()
        self.bytes_of = bytes_of

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return the bytes of a buffer, or the buffer."""
        return self.bytes_of.get(buffer) or super().buffer(buffer)

    def stmt(self, stmt: Stmt) -> Stmt:
        """Return the statement about bytes."""
        match stmt:
            case Copy():
                stmt = replace(stmt, src=self._region(stmt.src), dst=self._region(stmt.dst))
            case nodes.Fill() if stmt.dst.buffer in self.bytes_of:
                stmt = replace(stmt, dst=self._region(stmt.dst), value=const(0, BYTE))
            case Gemm(factors=(_, _)) if stmt.a.buffer in self.bytes_of:
                kind = str(stmt.a.buffer.dtype)
                stmt = replace(stmt, a=self._region(stmt.a), b=self._region(stmt.b), pairs_of=kind)
            case _:
                pass
        return super().stmt(stmt)

    def _region(self, region: Region) -> Region:
        if region.buffer not in self.bytes_of:
            return region
        offset, extent = _half(region.offsets[-1]), _half(region.extents[-1])
        assert offset is not None
        assert extent is not None
        offsets, extents = (*region.offsets[:-1], offset), (*region.extents[:-1], extent)
        return Region(self.bytes_of[region.buffer], offsets, extents)


def _noted(launch: KernelLaunch, reasons: Mapping[Gemm, str]) -> KernelLaunch:
    """Return a launch that says first why the unit does not multiply some of its products."""
    found = dict.fromkeys(reasons[s] for s in walk(launch) if s in reasons)  # type: ignore[index]
    if not found:
        return launch
    notes = [
        nodes.Annotate(nodes.NOTE, f"elements times factors in bfloat16: {reason}", launch.span)
        for reason in found
    ]
    body = launch.body.stmts if isinstance(launch.body, Seq) else (launch.body,)
    return replace(launch, body=Seq((*notes, *body), launch.body.span))
