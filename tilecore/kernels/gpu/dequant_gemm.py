"""GEMM with narrow weights on GPUs: decoded into shared memory for products, or as they are summed.

A few rows of A are bound by reading the weights: each word is decoded where it is multiplied, in
float32. More rows are products of tiles of A and of decoded weights, rounded to the type of A as
other libraries do; up to ``SPLIT_ROWS`` rows blocks share the sums, to fill the device. Whole
numbers (int4) times bfloat16 are products of any number of rows: two weights at a time are decoded
into the registers that a product reads, so that C is computed by columns and no decoded weight
lies in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tilecore.language as T
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import (
    NUM_STAGES,
    THREADS,
    GpuVariant,
    Knob,
    Problem,
    is_at_most,
)
from tilecore.kernels.packed_weights import BITS, DEPTH, FP8, PANEL, PER_WORD, sizes

FEW = 4  # rows of A up to which sums are faster than products
SPLIT_ROWS = 64
ROWS = T.GemmWarpPolicy.FullRow  # each warp its own weights
CODES = 128.0  # a bfloat16 whose low bits count ones
CHUNK = 64  # depth of the weights that a product reads while the next ones are decoded
WIDE = 4  # words that a thread reads at once
ADDERS = 128  # threads of the launch that adds up the parts
COLUMNS = 128  # of C that a block of it adds up


def _program(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    if problem["format"] == "int4" and problem["dtype"] == "bfloat16":
        return _by_pairs(problem, knobs)
    return (_by_sums if is_at_most(problem["m"], FEW) else _by_products)(problem, knobs)


def _shapes(problem: Problem) -> tuple[int, tuple[int, ...], str]:
    """Return the groups along K, and shape and type of the weights."""
    _, n, k, group = sizes(problem)
    form = str(problem["format"])
    words = (-(-n // PANEL), -(-k // DEPTH) * DEPTH // PER_WORD, PANEL)
    return -(-k // group), *(((k, n), form) if form in FP8 else (words, "int32"))


def _tile(problem: Problem, block_N: Any, block_K: Any) -> tuple[Any, ...]:
    """Return the shape of the weights of a step."""
    is_wide = problem["format"] in FP8
    return (block_K, block_N) if is_wide else (block_N // PANEL, block_K // PER_WORD, PANEL)


@T.macro
def _fetch(
    W: Any, Scale: Any, Zero: Any, w: Any, scale: Any, zero: Any, first: Any, bx: Any,
    problem: Problem,
) -> None:  # fmt: skip
    """Copy the weights of a step, whose first row is ``first``, with the scales of its groups."""
    group, (_, width) = int(problem["group"]), scale.shape
    if w.ndim == 2:
        T.copy(W[first, bx * width], w)
    else:
        T.copy(W[bx * (width // PANEL), first // PER_WORD, 0], w)
    T.copy(Scale[first // group, bx * width], scale)
    if problem["zeros"]:
        T.copy(Zero[first // group, bx * width], zero)


@T.macro
def _add_parts(parts: Any, C: Any) -> None:
    """Add up the parts of all splits."""
    splits, M, N = parts.shape
    with T.Kernel(T.ceildiv(N, COLUMNS), M, threads=ADDERS) as (bx, by):
        total = T.alloc_fragment((COLUMNS,), "float32")
        T.clear(total)
        for split in T.serial(splits):
            for j in T.Parallel(COLUMNS):
                total[j] += parts[split, by, bx * COLUMNS + j]
        for j in T.Parallel(COLUMNS):
            C[by, bx * COLUMNS + j] = total[j]


@T.macro
def _decode(
    w: Any, table: Any, scale: Any, zero: Any, b: Any, first: Any, problem: Problem
) -> None:
    """Set b[n, k] to the weights of a step with the first row ``first``, word by word."""
    group, is_wide, has_zeros = int(problem["group"]), w.ndim == 2, bool(problem["zeros"])
    width, depth = b.shape
    shape = (depth // PER_WORD, width, PER_WORD)
    for word, n, i in T.Parallel(*shape, coalesced_width=PER_WORD):
        k = word * PER_WORD + i
        if is_wide:
            value = T.cast(w[k, n], "float32")
        else:
            bit = 4 * (i // 2) + 16 * (i % 2)
            value = table[(w[n // PANEL, word, n % PANEL] >> bit) & 15]
        row = (first + word * PER_WORD) // group - first // group
        value = value * T.cast(scale[row, n], "float32")
        if has_zeros:
            value = value + T.cast(zero[row, n], "float32")
        b[n, k] = value


def _by_products(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    M, N, K, G = sizes(problem)
    dtype, out_dtype = problem["dtype"], problem["out_dtype"]
    block_M, block_N, block_K = knobs["block_M"], knobs["block_N"], knobs["block_K"]
    groups, w_shape, w_dtype = _shapes(problem)
    is_split = is_at_most(M, SPLIT_ROWS)
    splits = knobs["splits"] if is_split else 1
    tile = _tile(problem, block_N, block_K)

    @T.prim_func
    def dequant_gemm(
        A: T.Tensor((M, K), dtype),
        W: T.Tensor(w_shape, w_dtype),
        Table: T.Tensor((16,), dtype),
        Scale: T.Tensor((groups, N), dtype),
        Zero: T.Tensor((groups, N), dtype),
        C: T.Tensor((M, N), out_dtype),
    ) -> None:
        parts = T.alloc_global((splits, M, N), "float32")
        steps = T.ceildiv(K, splits * block_K)
        grid = (T.ceildiv(N, block_N), T.ceildiv(M, block_M), splits)
        with T.Kernel(*grid, threads=knobs["threads"]) as (bx, by, bz):
            a = T.alloc_shared((block_M, block_K), dtype)
            w = T.alloc_shared(tile, w_dtype)
            b = T.alloc_shared((block_N, block_K), dtype)
            scale = T.alloc_shared((T.ceildiv(block_K, G) + 1, block_N), dtype)
            zero = T.alloc_shared((T.ceildiv(block_K, G) + 1, block_N), dtype)
            table = T.alloc_shared((16,), "float32")
            c = T.alloc_fragment((block_M, block_N), "float32")
            T.copy(Table, table)
            T.clear(c)
            for ko in T.Pipelined(steps, num_stages=knobs["num_stages"]):
                first = (bz * steps + ko) * block_K
                T.copy(A[by * block_M, first], a)
                _fetch(W, Scale, Zero, w, scale, zero, first, bx, problem)
                _decode(w, table, scale, zero, b, first, problem)
                T.gemm(a, b, c, transpose_B=True)
            if is_split:
                for i, j in T.Parallel(block_M, block_N):
                    parts[bz, by * block_M + i, bx * block_N + j] = c[i, j]
            else:
                T.copy(c, C[by * block_M, bx * block_N])
        if is_split:
            _add_parts(parts, C)

    return dequant_gemm


def _by_pairs(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    """Return C by columns: weights are decoded two at a time into the registers of products.

    A code in the low bits of the bfloat16 128 is the number 128 + code. The table of int4 is a
    progression: a step and a first number give its values exactly, scale and zero round them once.
    Weights of a chunk are decoded while the product of the one before runs.
    """
    M, N, K, G = sizes(problem)
    dtype, out_dtype = problem["dtype"], problem["out_dtype"]
    block_M, block_N, block_K = knobs["block_M"], knobs["block_N"], knobs["block_K"]
    groups, w_shape, w_dtype = _shapes(problem)
    is_split = is_at_most(M, SPLIT_ROWS)
    splits = knobs["splits"] if is_split else 1
    rows = _rows_of_scales(block_K, G)

    @T.prim_func
    def dequant_gemm(
        A: T.Tensor((M, K), dtype),
        W: T.Tensor(w_shape, w_dtype),
        Table: T.Tensor((16,), dtype),
        Scale: T.Tensor((groups, N), dtype),
        Zero: T.Tensor((groups, N), dtype),
        C: T.Tensor((M, N), out_dtype),
    ) -> None:
        parts = T.alloc_global((splits, M, N), "float32")
        steps = T.ceildiv(K, splits * block_K)
        grid = (T.ceildiv(N, block_N), T.ceildiv(M, block_M), splits)
        with T.Kernel(*grid, threads=knobs["threads"]) as (bx, by, bz):
            a = T.alloc_shared((block_M, block_K), dtype)
            w = T.alloc_shared(_tile(problem, block_N, block_K), w_dtype)
            scale = T.alloc_shared((rows, block_N), dtype)
            zero = T.alloc_shared((rows, block_N), dtype)
            step, low = T.alloc_var("uint32"), T.alloc_var("uint32")
            c = T.alloc_fragment((block_N, block_M), "float32")
            step = _twice(Table[1] - Table[0])
            low = _twice(Table[0] - CODES * (Table[1] - Table[0]))
            T.clear(c)
            for ko in T.Pipelined(steps, num_stages=knobs["num_stages"]):
                first = (bz * steps + ko) * block_K
                T.copy(A[by * block_M, first], a)
                _fetch(W, Scale, Zero, w, scale, zero, first, bx, problem)
                for at, depth in _chunks(block_K):
                    b = T.alloc_fragment((block_N, depth), dtype)
                    _decode_pairs(w, step, low, scale, zero, b, (first, at), knobs, problem)
                    T.gemm(b, a[:, at : at + depth], c, transpose_B=True, policy=ROWS)
            if is_split:
                for i, j in T.Parallel(block_N, block_M):
                    parts[bz, by * block_M + j, bx * block_N + i] = c[i, j]
            else:
                out = T.alloc_shared((block_M, block_N), out_dtype)
                for i, j in T.Parallel(block_N, block_M):
                    out[j, i] = c[i, j]
                T.copy(out, C[by * block_M, bx * block_N])
        if is_split:
            _add_parts(parts, C)

    return dequant_gemm


@T.macro
def _decode_pairs(
    w: Any, step: Any, low: Any, scale: Any, zero: Any, b: Any, place: tuple[Any, ...],
    knobs: Mapping[str, Any], problem: Problem,
) -> None:  # fmt: skip
    """Set b[n, k] to weights of a step; ``place``: its first row, and the first of these in it."""
    has_zeros, (first, at) = bool(problem["zeros"]), place
    for n, i in T.Parallel(*b.shape):
        k = at + i
        word = w[*_word_of(n, k, knobs["block_N"])] >> (4 * (k % PER_WORD // 2))
        value = T.fma_halves((word & 0x000F000F) | 0x43004300, step, low, "bfloat16")
        row = _row_of_scale(first, k, knobs["block_K"], int(problem["group"]))
        offset = _twice(zero[row, n]) if has_zeros else 0
        value = T.fma_halves(value, _twice(scale[row, n]), offset, "bfloat16")
        b[n, i] = T.reinterpret(T.cast(value >> (16 * (k % 2)), "uint16"), "bfloat16")


def _chunks(block_K: Any) -> list[tuple[Any, Any]]:
    """Return (first row, depth) of what is decoded at once; all of a step of unknown depth."""
    if not isinstance(block_K, int):
        return [(0, block_K)]
    depth = min(block_K, CHUNK)
    return [(at, depth) for at in range(0, block_K, depth)]


def _word_of(n: Any, k: Any, block_N: Any) -> tuple[Any, ...]:
    """Return the place of the word of a weight; a column of one panel is no quotient."""
    word = k // PER_WORD
    if isinstance(block_N, int) and block_N == PANEL:
        return 0, word, n
    return n // PANEL, word, n % PANEL


def _is_aligned(block_K: Any, group: int) -> bool:
    """Return whether steps and groups begin together: both are powers of 2, as all knobs are."""
    known = [group, *([block_K] if isinstance(block_K, int) else [])]
    return all(n & (n - 1) == 0 for n in known)


def _rows_of_scales(block_K: Any, group: int) -> Any:
    """Return of how many groups a step has weights, at most."""
    rows = T.ceildiv(block_K, group)
    return rows if _is_aligned(block_K, group) else rows + 1


def _row_of_scale(first: Any, k: Any, block_K: Any, group: int) -> Any:
    """Return which scale of a step is that of its row ``k``; a word never spans two groups."""
    row = k // PER_WORD * PER_WORD
    if not _is_aligned(block_K, group):
        return (first + row) // group - first // group
    return 0 if isinstance(block_K, int) and block_K <= group else row // group


def _twice(value: Any) -> Any:
    """Return a word of which both halves are a bfloat16."""
    return T.cast(T.reinterpret(T.cast(value, "bfloat16"), "uint16"), "uint32") * 0x10001


def _by_sums(problem: Problem, knobs: Mapping[str, Any]) -> PrimFunc:
    M, N, K, G = sizes(problem)
    dtype, out_dtype = problem["dtype"], problem["out_dtype"]
    block_N, block_K, splits = knobs["block_N"], knobs["block_K"], knobs["splits"]
    groups, w_shape, w_dtype = _shapes(problem)
    tile = _tile(problem, block_N, block_K)

    @T.prim_func
    def dequant_gemm(
        A: T.Tensor((M, K), dtype),
        W: T.Tensor(w_shape, w_dtype),
        Table: T.Tensor((16,), dtype),
        Scale: T.Tensor((groups, N), dtype),
        Zero: T.Tensor((groups, N), dtype),
        C: T.Tensor((M, N), out_dtype),
    ) -> None:
        parts = T.alloc_global((splits, M, N), "float32")
        steps = T.ceildiv(K, splits * block_K)
        with T.Kernel(T.ceildiv(N, block_N), splits, threads=knobs["threads"]) as (bx, by):
            a = T.alloc_shared((M, block_K), dtype)
            w = T.alloc_shared(tile, w_dtype)
            scale = T.alloc_shared((T.ceildiv(block_K, G) + 1, block_N), dtype)
            zero = T.alloc_shared((T.ceildiv(block_K, G) + 1, block_N), dtype)
            table = T.alloc_shared((16,), "float32")
            words, panels = block_K // PER_WORD, block_N // PANEL
            sums = T.alloc_fragment((M, words, panels, PANEL), "float32")
            total = T.alloc_fragment((M, panels, PANEL), "float32")
            T.copy(Table, table)
            T.clear(sums)
            for ko in T.Pipelined(steps, num_stages=knobs["num_stages"]):
                first = (by * steps + ko) * block_K
                T.copy(A[0, first], a)
                _fetch(W, Scale, Zero, w, scale, zero, first, bx, problem)
                for k, p, n in T.Parallel(words, panels, PANEL, coalesced_width=WIDE):
                    found = _sums_of_word(a, w, table, scale, zero, (first, k, p, n), problem)
                    for m, sum_of_row in enumerate(found):
                        sums[m, k, p, n] += sum_of_row
            T.reduce_sum(sums, total, dim=1)
            for m, p, n in T.Parallel(M, panels, PANEL):
                parts[by, m, bx * block_N + p * PANEL + n] = total[m, p, n]
        _add_parts(parts, C)

    return dequant_gemm


def _sums_of_word(
    a: Any, w: Any, table: Any, scale: Any, zero: Any, place: tuple[Any, ...], problem: Problem
) -> list[Any]:
    """Return, for each row of A, the sum of its products with the weights of a word.

    A word never spans two groups, so that its scale and zero are applied once.
    """
    first, k, p, n = place
    column = p * PANEL + n
    group, row = int(problem["group"]), k * PER_WORD
    if w.ndim == 2:
        values = [_bound(T.cast(w[row + i, column], "float32")) for i in range(PER_WORD)]
    else:
        word = _bound(w[p, k, n])
        values = [_bound(table[(word >> bit) & 15]) for bit in BITS]
    at = (first + row) // group - first // group
    factor = _bound(T.cast(scale[at, column], "float32"))
    offset = _bound(T.cast(zero[at, column], "float32")) if problem["zeros"] else None
    found = []
    for m in range(int(problem["m"])):
        xs = [T.cast(a[m, row + i], "float32") for i in range(PER_WORD)]
        total = factor * _total([v * x for v, x in zip(values, xs, strict=True)])
        found.append(total if offset is None else total + offset * _total(xs))
    return found


def _total(terms: list[Any]) -> Any:
    return sum(terms[1:], terms[0])


def _bound(value: Any) -> Any:
    """Return a variable of this value."""
    var = getattr(T, str(value.dtype))()
    T.let(var, value)
    return var


DEQUANT_GEMM_ON_GPU = GpuVariant(
    knobs=(
        Knob("block_M", 16, {"cuda": (8, 16, 32, 64, 128, 256)}, doc="rows of C per block"),
        Knob("block_N", 64, {"cuda": (64, 128, 256)}, doc="columns of C per block"),
        Knob("block_K", 128, {"cuda": (32, 64, 128, 256)}, doc="depth of one step"),
        Knob("splits", 4, {"cuda": (1, 2, 4, 8, 16)}, doc="blocks that share a sum, of few rows"),
        replace(NUM_STAGES, values={"cuda": (1, 2, 3, 4)}),
        THREADS,
    ),
    program=_program,
    rounded_dtype=lambda problem: str(problem["dtype"]),  # weights
    numbers=lambda problem: ("group", "m") if int(problem["m"]) <= SPLIT_ROWS else ("group",),
)
