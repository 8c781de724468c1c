"""Matrix products: T.gemm and the warp policies of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from tilecore.errors import ScopeError, TypeMismatch, did_you_mean
from tilecore.frontend.builder import current
from tilecore.ir.expr import as_bool, int_value
from tilecore.ir.gemm_shape import check_gemm_shape
from tilecore.ir.nodes import Gemm
from tilecore.language.barrier import arrive
from tilecore.language.copy import region

_NAMES = ("transpose_A", "transpose_B", "policy", "clear_accum", "mbar")
_IGNORED = ("k_pack", "wg_wait", "annotations", "k_inner", "prefer_instruction")


class GemmWarpPolicy(StrEnum):
    """How warps divide the output of T.gemm on a GPU; no effect on a CPU."""

    Square = "square"
    FullRow = "full_row"
    FullCol = "full_col"


def gemm(
    A: Any,
    B: Any,
    C: Any,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: GemmWarpPolicy = GemmWarpPolicy.Square,
    clear_accum: Any = False,
    mbar: Any = None,
    **options: Any,
) -> None:
    """Compute ``C (+)= op(A) @ op(B)``, accumulating in the element type of C.

    Args:
        A: tile [M, K], or [K, M] with ``transpose_A``.
        B: tile [K, N], or [N, K] with ``transpose_B``.
        C: tile [M, N].
        transpose_A: whether A is stored transposed.
        transpose_B: whether B is stored transposed.
        policy: how warps divide C; a hint.
        clear_accum: drop the old value of C; a bool or an expression such as ``k == 0``.
        mbar: a barrier at which to arrive, once, when C is complete; the program waits for it.
        options: ``wg_wait=-1`` makes it ``T.wgmma_gemm``; ``k_pack`` and other hints of TileLang
            are without effect here.

    Raises:
        ShapeMismatch: M, N or K differ between the tiles (TC201).
        TypeMismatch: an argument is not a tile, or a keyword is unknown (TC202).
    """
    kept = (bool(transpose_A), bool(transpose_B), policy, clear_accum)
    emit_gemm(A, B, C, kept, mbar, options, is_async=mbar is not None)


def emit_gemm(
    A: Any,
    B: Any,
    C: Any,
    kept: tuple[bool, bool, GemmWarpPolicy, Any],
    mbar: Any,
    options: Mapping[str, Any],
    *,
    is_async: bool,
    in_pair: bool = False,
) -> None:
    """Emit a product, and the arrival at ``mbar``.

    ``kept``: transpose_A, transpose_B, policy and clear_accum of T.gemm. ``is_async``: the program
    waits for the product itself. ``in_pair``: the product is one of two blocks, and so is its
    arrival.
    """
    unknown = sorted(set(options) - set(_IGNORED))
    if "use_2cta" in unknown:
        raise TypeMismatch(
            expected="T.tcgen05_gemm(..., use_2cta=True), whose barrier the program waits for",
            found="T.gemm(..., use_2cta=...)",
        )
    if unknown:
        raise TypeMismatch(
            expected=f"keywords of T.gemm (also accepted: {', '.join(_IGNORED)})",
            found=", ".join(unknown),
            hint=did_you_mean(unknown[0], (*_NAMES, *_IGNORED), "{}="),
        )
    builder = current()
    if builder.find("parallel") is not None:
        raise ScopeError(message="T.gemm stands inside T.Parallel", hint="use T.serial around it")
    a, b, c = region(A, "A of T.gemm"), region(B, "B of T.gemm"), region(C, "C of T.gemm")
    transpose_a, transpose_b, policy, clear_accum = kept
    check_gemm_shape(a, b, c, transpose_a, transpose_b, in_pair=in_pair)
    name = policy.value if isinstance(policy, GemmWarpPolicy) else str(policy)
    clear, in_group = as_bool(clear_accum), _wait_of(options) < 0
    tiles = (a, b, c, transpose_a, transpose_b, clear, name)
    builder.emit(Gemm(*tiles, builder.span, is_async, in_group, in_pair))
    if mbar is not None:
        arrive(mbar, "gemm", once=True, after_products=True, in_pair=in_pair)


def _wait_of(options: Mapping[str, Any]) -> int:
    """Return ``wg_wait``, a keyword or an annotation: products that may run on, or -1 for any."""
    annotations = options.get("annotations") or {}
    value = int_value(options.get("wg_wait", annotations.get("wg_wait", 0)))
    if value is None or value < -1:
        raise TypeMismatch(expected="wg_wait=0 or wg_wait=-1", found=options.get("wg_wait"))
    return value
