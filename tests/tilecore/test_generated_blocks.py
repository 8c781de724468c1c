"""Random programs of blocks: as rows (passes/join_blocks.py) they compute what they do as blocks.

Numbers are small and whole, sums and maxima of them exact, so that every bit must be the same.
"""

from __future__ import annotations

import runpy
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilecore.language as T
from tilecore import runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.interpreter import run
from tilecore.ir.dtype import DType
from tilecore.passes import join_blocks

TENSORS, TILES = ("X", "Y", "Z"), ("a", "b", "c")
PLACE, BOX = "[by * BM + i, bx * BN + j]", "[by * BM, bx * BN]"
TARGETS = (*(f"{tile}[i, j]" for tile in TILES), *(tensor + PLACE for tensor in TENSORS))
DTYPES = st.sampled_from(["float32", "float32", "float16", "bfloat16"])
TEXT = """
@T.prim_func
def main(
    X: T.Tensor(({M}, {N}), "{dtype}"), Y: T.Tensor(({M}, {N}), "{dtype}"),
    Z: T.Tensor(({M}, {N}), "{dtype}"), W: T.Tensor(({N},), "{dtype}"),
):
    BM, BN = {BM}, {BN}
    with T.Kernel(T.ceildiv({N}, BN), T.ceildiv({M}, BM), threads=128) as (bx, by):
        a = T.alloc_shared((BM, BN), "{a}")
        b = T.alloc_fragment((BM, BN), "{b}")
        c = T.alloc_fragment((BM, BN), "{c}")
{body}
"""


@dataclass(frozen=True)
class Blocks:
    """A program's text, its tensors' shape and type, and whether all it has is float32."""

    source: str
    shape: tuple[int, int]
    dtype: str
    is_wide: bool


@st.composite
def values(draw, depth: int = 2) -> str:
    """Draw an expression of an element."""
    kind = draw(st.integers(0, 9)) if depth else 0
    if kind < 5:
        tile, tensor = draw(st.sampled_from(TILES)), draw(st.sampled_from(TENSORS))
        leaves = (f"{tile}[i, j]", tensor + PLACE, "W[bx * BN + j]", f"{tile}[i, j] * 0.5")
        return draw(st.sampled_from(leaves))
    one, other = draw(values(depth - 1)), draw(values(depth - 1))
    if kind == 9:
        return f"T.if_then_else((bx * BN + j) % 3 < (by * BM + i) % 2, {one}, {other})"
    return f"T.max({one}, {other})" if kind == 8 else f"({one} {'+-'[kind % 2]} {other})"


@st.composite
def statements(draw) -> str:
    """Draw a copy, or a nest of one to three stores, some by a name."""
    tile, tensor = draw(st.sampled_from(TILES)), draw(st.sampled_from(TENSORS))
    kind = draw(st.integers(0, 5))
    if kind < 2:
        ends = (tile, tensor + BOX) if kind else (tensor + BOX, tile)
        return f"        T.copy({', '.join(ends)})\n"
    lines = ["        for i, j in T.Parallel(BM, BN):\n"]
    for _ in range(draw(st.integers(1, 3))):
        target = draw(
            st.sampled_from([*(f"{t}[i, j]" for t in TILES), *(t + PLACE for t in TENSORS)])
        )
        value = draw(values())
        if draw(st.booleans()):
            lines.append(f"            named = {value}\n")
            value = f"named + {draw(values(0))}"
        lines.append(f"            {target} = {value}\n")
    return "".join(lines)


@st.composite
def programs(draw) -> Blocks:
    """Draw a program whose tiles are set before anything reads them."""
    sizes = {
        "M": draw(st.integers(64, 80)), "N": draw(st.integers(17, 80)),
        "BM": draw(st.sampled_from([4, 8, 16])), "BN": draw(st.sampled_from([16, 32])),
    }  # fmt: skip
    kinds = {name: draw(DTYPES) for name in ("dtype", *TILES)}
    first = (
        f"        T.copy({draw(st.sampled_from(TENSORS))}{BOX}, {t})\n"
        if draw(st.booleans())
        else f"        T.fill({t}, {draw(st.integers(0, 2))})\n"
        for t in TILES
    )
    body = "".join([*first, *draw(st.lists(statements(), min_size=1, max_size=4))])
    body += f"        T.copy({draw(st.sampled_from(TILES))}, Z{BOX})\n"
    source = TEXT.format(**sizes, **kinds, body=body)
    shape, is_wide = (sizes["M"], sizes["N"]), set(kinds.values()) == {"float32"}
    return Blocks(source, shape, kinds["dtype"], is_wide)


def check(program: Blocks, artifacts_of, tmp_path) -> None:
    file = tmp_path / f"blocks{abs(hash(program.source))}.py"
    file.write_text(program.source)
    func = runpy.run_path(str(file), {"T": T})["main"]
    rng, kind = np.random.default_rng(0), DType(program.dtype).numpy
    shapes = [program.shape] * 3 + [program.shape[1:]]
    given = [rng.integers(-3, 4, shape).astype(kind) for shape in shapes]
    found = []
    for least in (1, 1 << 30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(join_blocks, "LEAST_ROWS", least)
            kernel = runtime.load(compile(func, store=artifacts_of(least)))
        found.append([x.copy() for x in given])
        kernel(*found[-1])
    if program.is_wide:
        found.append([x.copy() for x in given])
        run(func, *found[-1])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(one, other, program.source)


FIXTURES = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.fixture
def artifacts_of(tmp_path):
    """A store for each way to compile: the key of an artifact does not tell them apart."""
    return lambda name: ArtifactStore(tmp_path / str(name))


@settings(max_examples=6, deadline=None, suppress_health_check=FIXTURES)
@given(program=programs())
def test_rows_compute_what_blocks_do(program, artifacts_of, tmp_path):
    check(program, artifacts_of, tmp_path)


@pytest.mark.exhaustive
@settings(max_examples=120, deadline=None, suppress_health_check=FIXTURES)
@given(program=programs())
def test_more_rows_compute_what_blocks_do(program, artifacts_of, tmp_path):
    check(program, artifacts_of, tmp_path)
