"""Which gemms multiply narrow elements by instructions that sum up several products at once.

Such an instruction takes ``group`` neighbours along K of each operand. The vector operand then lies
in panels whose lanes hold groups. Of the broadcast operand vector instructions read a group as one
32-bit word, those on tiles (AMX) up to 16 rows of up to 16 groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilecore.inference.cpu.regions import gemm_extents, is_contiguous
from tilecore.inference.uses import Use
from tilecore.ir.analysis import covers_whole, kept_axes
from tilecore.ir.arithmetic.bounds import linear
from tilecore.ir.expr import Expr, int_value
from tilecore.ir.gemm_shape import accumulator_dtype
from tilecore.ir.nodes import Buffer, Copy, Gemm, Let, Region, Seq, Store
from tilecore.target import Target


@dataclass(frozen=True, slots=True)
class Dot:
    """An instruction: to each lane of ``accum`` it adds ``group`` products of ``operands``.

    ``is_tiled``: it multiplies matrices of at most 16 rows and 16 groups; ``is_mixed``: unsigned by
    signed bytes; ``stored``: what elements are widened to where they are packed ("": nothing);
    ``vector_bytes``: the only width of registers that its features have it for (0: every width).
    """

    name: str
    group: int
    operands: tuple[str, ...]
    accum: str
    features: frozenset[str] = frozenset()
    is_tiled: bool = False
    is_mixed: bool = False
    stored: str = ""
    vector_bytes: int = 0

    def obstacle(self, features: Collection[str], vector_bytes: int) -> str:
        """Return what a CPU with ``features`` and such registers lacks ("" if nothing)."""
        if missing := self.features - set(features):
            return f"lacks {', '.join(sorted(missing))}"
        if self.vector_bytes not in (0, vector_bytes):
            needed = ", ".join(sorted(self.features))
            return f"has registers of {vector_bytes} bytes, {needed} takes {self.vector_bytes}"
        return ""


TILE_ROWS = 16
BYTES = ("int8", "uint8")
BFLOAT_TILES, BYTE_TILES = (frozenset({"amx_tile", f"amx_{kind}"}) for kind in ("bf16", "int8"))
DOTS = (  # the fastest first; LLVM encodes the 256 bits of avx_vnni by VEX
    Dot("tdpbf16ps", 2, ("bfloat16",), "float32", BFLOAT_TILES, True),
    Dot("tdpbssd", 4, ("int8",), "int32", BYTE_TILES, True),
    Dot("tdpbuud", 4, ("uint8",), "int32", BYTE_TILES, True),
    Dot("vdpbf16ps", 2, ("bfloat16",), "float32", frozenset({"avx512_bf16"})),
    Dot("vpdpbusd", 4, BYTES, "int32", frozenset({"avx512_vnni"}), is_mixed=True),
    Dot("vpdpbusd", 4, BYTES, "int32", frozenset({"avx_vnni"}), is_mixed=True, vector_bytes=32),
    Dot("vpmaddwd", 2, BYTES, "int32", stored="int16"),
)


def choose(
    gemms: Iterable[Gemm], uses: Mapping[Buffer, Sequence[Use]], target: Target
) -> tuple[dict[Gemm, Dot], list[str]]:
    """Return the gemms that use such an instruction, and notes on those that could but do not."""
    chosen: dict[Gemm, Dot] = {}
    notes: list[str] = []
    for gemm in gemms:
        for dot in DOTS:
            if not _has_types(gemm, dot):
                continue
            reason = _obstacle(gemm, dot, uses, target)
            if not reason:
                chosen[gemm] = dot
                break
            notes.append(f"{gemm.span}: gemm without {dot.name}: {reason}")
    while shared := [g for g in chosen if not _agrees(g, chosen, uses)]:
        for gemm in shared:
            name = chosen.pop(gemm).name
            notes.append(
                f"{gemm.span}: gemm without {name}: it shares a tile with one that has not"
            )
    return chosen, notes


def tiled(target: Target) -> frozenset[str]:
    """Return the element types of which a target multiplies tiles."""
    found = (
        dot for dot in DOTS
        if dot.is_tiled and not dot.obstacle(target.features, target.vector_bytes)
    )  # fmt: skip
    return frozenset(name for dot in found for name in dot.operands)


def tile_of(gemm: Gemm, dot: Dot) -> tuple[int, int] | None:
    """Return the rows and groups of the tiles that divide a gemm, or None: they would be small."""
    m, _ = gemm_extents(gemm.c)
    groups, rest = divmod(gemm_extents(gemm.a)[0 if gemm.transpose_a else 1], dot.group)
    rows, depth = _divisor(m), _divisor(groups)
    is_wasteful = any(
        size < min(whole, TILE_ROWS // 2) for size, whole in ((rows, m), (depth, groups))
    )
    return None if rest or is_wasteful or not groups else (rows, depth)


def _divisor(extent: int) -> int:
    """Return the largest divisor that is no more than the rows of a tile."""
    return max(d for d in range(1, TILE_ROWS + 1) if extent % d == 0)


def lies_in_groups(
    source: Region, limits: Sequence[Expr | None], gemms: Mapping[Gemm, Dot]
) -> bool:
    """Return whether gemms can read groups, and rows of tiles, of a where it lies in a tensor."""
    for gemm, dot in gemms.items():
        if dot.stored:
            return False
        tile = tile_of(gemm, dot) if dot.is_tiled else None
        if gemm.transpose_a or not is_contiguous(source) or (tile and limits[0] is not None):
            return False
        depth = gemm.a.extents[-1] if limits[1] is None else limits[1]
        if not is_multiple(depth, dot.group * (tile[1] if tile else 1)):
            return False
    return True


def flushes(gemm: Gemm, chosen: Mapping[Gemm, Dot]) -> bool:
    """Return whether a gemm takes subnormal bfloat16 operands for 0, as the conversion does."""
    return gemm in chosen and chosen[gemm].operands == ("bfloat16",)


def is_multiple(expr: Expr, factor: int) -> bool:
    """Return whether an integer expression is always a multiple of ``factor``."""
    form = linear(expr)
    if form is None:
        return False
    return not any(c % factor for c in (form.constant, *form.coefficients.values()))


def _has_types(gemm: Gemm, dot: Dot) -> bool:
    a, b = gemm.a.buffer.dtype, gemm.b.buffer.dtype
    return a == b and str(a) in dot.operands and accumulator_dtype(gemm) == dot.accum


def _obstacle(gemm: Gemm, dot: Dot, uses: Mapping[Buffer, Sequence[Use]], target: Target) -> str:
    """Return why a gemm cannot use an instruction ("" if it can)."""
    a, b = gemm.a.buffer, gemm.b.buffer
    if lacking := dot.obstacle(target.features, target.vector_bytes):
        return f"{target.name} {lacking}"
    if dot.is_tiled and gemm.transpose_a:
        return "its broadcast operand is transposed"
    if dot.is_tiled and tile_of(gemm, dot) is None:
        return "M or K of its tiles have no divisor from 8 to 16"
    if a is b:
        return "both operands are one tile"
    if a.scope == "global" or not _is_operand(b, "gemm-b", uses):
        return "its operands are not tiles of their own"
    if gemm.transpose_a and not _is_operand(a, "gemm-a", uses):
        return "its transposed operand is no tile of its own"
    if dot.stored and not _is_operand(a, "gemm-a", uses):
        return f"{a.name} is read elsewhere, too, and cannot be widened where it lies"
    for operand in (b, a) if gemm.transpose_a else (b,):
        writes = [u for u in uses[operand] if u.role != "gemm-b" and u.role != "gemm-a"]
        if not all(_is_plain_copy(u) or is_computed(u) for u in writes):
            return f"{operand.name} is neither copied from a tensor of its type nor computed whole"
    return ""


def _is_operand(buffer: Buffer, role: str, uses: Mapping[Buffer, Sequence[Use]]) -> bool:
    """Return whether a tile of two axes is written by copies, and else read whole in one role."""
    if buffer.scope == "global" or buffer.base is not None or len(buffer.shape) != 2:
        return False
    if any(other.base is not None and other.root is buffer for other in uses):
        return False
    readers = [u for u in uses[buffer] if u.role not in ("copy-dst", "fill", "store")]
    gemms = [u.stmt for u in readers if isinstance(u.stmt, Gemm)]
    whole = all(u.role == role and u.region and covers_whole(u.region) for u in readers)
    flags = {g.transpose_a if role == "gemm-a" else g.transpose_b for g in gemms}
    return whole and len(flags) == 1


def _is_plain_copy(use: Use) -> bool:
    copy = use.stmt
    if not isinstance(copy, Copy) or use.role != "copy-dst" or not covers_whole(copy.dst):
        return False
    source = copy.src.buffer
    return (
        source.scope == "global"
        and source.dtype == use.buffer.dtype
        and len(kept_axes(copy.src)) == 2
        and len(kept_axes(copy.dst)) == 2
    )


def is_computed(use: Use) -> bool:
    """Return whether a store is one of a nest that computes a whole tile of pairs."""
    nest = use.context.nest
    if use.role != "store" or nest is None or use.buffer.dtype != "bfloat16":
        return False
    body = nest.body.stmts if isinstance(nest.body, Seq) else (nest.body,)
    if body[-1] is not use.stmt or not all(isinstance(s, Let) for s in body[:-1]):
        return False
    store = use.stmt
    assert isinstance(store, Store)
    extents = tuple(int_value(e) for e in nest.extents)
    at_vars = len(nest.loop_vars) == len(store.indices) and all(
        i is v for i, v in zip(store.indices, nest.loop_vars, strict=True)
    )
    return at_vars and extents == use.buffer.static_shape


def _agrees(gemm: Gemm, chosen: Mapping[Gemm, Dot], uses: Mapping[Buffer, Sequence[Use]]) -> bool:
    """Return whether all gemms that read the tiles laid out for this one use its instruction."""
    is_a_too = gemm.transpose_a or bool(chosen[gemm].stored)
    laid_out = [gemm.b.buffer, *([gemm.a.buffer] if is_a_too else [])]
    readers = [u.stmt for b in laid_out for u in uses[b] if isinstance(u.stmt, Gemm)]
    return all(chosen.get(r) is chosen[gemm] for r in readers)
