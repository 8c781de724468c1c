"""Which gemms multiply narrow elements by instructions that sum up several products at once.

Such an instruction takes ``group`` neighbours along K of each operand. The vector operand then lies
in panels whose lanes hold groups; of the broadcast operand a group is read as one 32-bit word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilecore.inference.uses import Use, kept_axes
from tilecore.ir.analysis import covers_whole
from tilecore.ir.bounds import linear
from tilecore.ir.expr import Expr
from tilecore.ir.gemm_shape import accumulator_dtype
from tilecore.ir.nodes import Buffer, Copy, Gemm
from tilecore.target import Target


@dataclass(frozen=True, slots=True)
class Dot:
    """An instruction: to each lane of ``accum`` it adds ``group`` products of ``operands``."""

    name: str
    group: int
    operands: tuple[str, ...]
    accum: str
    features: frozenset[str]


DOTS = (
    Dot("vdpbf16ps", 2, ("bfloat16",), "float32", frozenset({"avx512_bf16"})),
    Dot("vpdpbusd", 4, ("int8", "uint8"), "int32", frozenset({"avx512_vnni"})),
)


def choose(
    gemms: Iterable[Gemm], uses: Mapping[Buffer, Sequence[Use]], target: Target
) -> tuple[dict[Gemm, Dot], list[str]]:
    """Return the gemms that use such an instruction, and notes on those that could but do not."""
    chosen: dict[Gemm, Dot] = {}
    notes: list[str] = []
    for gemm in gemms:
        dot = next((d for d in DOTS if _has_types(gemm, d)), None)
        if dot is None:
            continue
        reason = f"{target.name} lacks {', '.join(sorted(dot.features - target.features))}"
        if dot.features <= target.features:
            reason = _obstacle(gemm, uses)
        if reason:
            notes.append(f"{gemm.span}: gemm without {dot.name}: {reason}")
        else:
            chosen[gemm] = dot
    while shared := [g for g in chosen if not _agrees(g, chosen, uses)]:
        for gemm in shared:
            name = chosen.pop(gemm).name
            notes.append(
                f"{gemm.span}: gemm without {name}: it shares a tile with one that has not"
            )
    return chosen, notes


def is_multiple(expr: Expr, factor: int) -> bool:
    """Return whether an integer expression is always a multiple of ``factor``."""
    form = linear(expr)
    if form is None:
        return False
    return not any(c % factor for c in (form.constant, *form.coefficients.values()))


def _has_types(gemm: Gemm, dot: Dot) -> bool:
    narrow = all(str(r.buffer.dtype) in dot.operands for r in (gemm.a, gemm.b))
    return narrow and accumulator_dtype(gemm) == dot.accum


def _obstacle(gemm: Gemm, uses: Mapping[Buffer, Sequence[Use]]) -> str:
    a, b = gemm.a.buffer, gemm.b.buffer
    if a is b:
        return "both operands are one tile"
    if a.scope == "global" or not _is_operand(b, "gemm-b", uses):
        return "its operands are not tiles of their own"
    if gemm.transpose_a and not _is_operand(a, "gemm-a", uses):
        return "its transposed operand is no tile of its own"
    for operand in (b, a) if gemm.transpose_a else (b,):
        writes = [u for u in uses[operand] if u.role != "gemm-b" and u.role != "gemm-a"]
        if not all(_is_plain_copy(u) for u in writes):
            return f"{operand.name} is not copied from a tensor of its type"
    return ""


def _is_operand(buffer: Buffer, role: str, uses: Mapping[Buffer, Sequence[Use]]) -> bool:
    """Return whether a tile of two axes is written by copies, and else read whole in one role."""
    if buffer.scope == "global" or buffer.base is not None or len(buffer.shape) != 2:
        return False
    if any(other.base is not None and other.root is buffer for other in uses):
        return False
    readers = [u for u in uses[buffer] if u.role not in ("copy-dst", "fill")]
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


def _agrees(gemm: Gemm, chosen: Mapping[Gemm, Dot], uses: Mapping[Buffer, Sequence[Use]]) -> bool:
    """Return whether all gemms that read the tiles laid out for this one are chosen, too."""
    laid_out = [gemm.b.buffer, *([gemm.a.buffer] if gemm.transpose_a else [])]
    readers = [u.stmt for b in laid_out for u in uses[b] if isinstance(u.stmt, Gemm)]
    return all(r in chosen for r in readers)
