"""Random programs written per thread: in groups they compute what they do else.

Numbers are small and whole, sums of them exact, so that every bit must be the same: of threads one
after the other, in groups wherever that is possible, in groups where it pays, and of the oracle.
"""

from __future__ import annotations

import math
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
from tilecore.passes.threads import vectorize_threads

BLOCKS, SIZE, DEPTH = 2, 4096, 2
SYNC = "T.sync_threads()"
SHAPES = ((32,), (64,), (40,), (16, 4), (4, 16), (8, 3), (8, 2, 4), (50,))
TEXT = """
@T.prim_func
def main(
    X: T.Tensor(({size},), "float32"), H: T.Tensor(({size},), "float16"),
    N: T.Tensor(({size},), "int32"), Y: T.Tensor(({blocks}, {count}), "float32"),
    Z: T.Tensor(({blocks}, {count} * 4), "float32"), C: T.Tensor((8,), "int32"),
):
    with T.Kernel({blocks}, threads={shape}) as bx:
{threads}
        v = T.alloc_var("float32", init=0.0)
        a = T.alloc_local((4,), "float32")
        h = T.alloc_local((4,), "float16")
        n = T.alloc_local((1,), "int32")
        S = T.alloc_shared(({count},), "float32")
        R = T.alloc_shared(({count}, 4), "float32")
        T.clear(a)
        T.fill(h, 1)
        n[0] = t
{body}
        Y[bx, t] = v
        for k in T.vectorized(4):
            Z[bx, t * 4 + k] = a[k] + T.cast(h[k], "float32")
"""


@dataclass(frozen=True)
class Threads:
    """A program's text and how many threads a block of it has."""

    source: str
    count: int


def places(draw, count: int, k: str | None) -> str:
    """Draw an index of a long tensor."""
    of_k = [f"t * 4 + {k}", f"{k} * {count} + t", f"(t * 4 + {k}) // 8", f"t // 4 * 4 + {k}"]
    forms = ["t", "bx * 64 + t", "t // 4", "t % 4 * 8 + t // 4", "tx", "(t + 3) % 16", "t >> 2",
             "(t & 7) * 2", f"{count} - t", "t * t % 31", "n[0] % 8"]  # fmt: skip
    return draw(st.sampled_from([*forms, *(of_k if k else [])]))


def values(draw, count: int, k: str | None, depth: int = 2) -> str:
    """Draw a value of a thread."""
    kind = draw(st.integers(0, 8)) if depth else 0
    if kind < 5:
        place = places(draw, count, k)
        leaves = ["v", f"X[{place}]", f"T.cast(H[{place}], 'float32')", "a[1]", "2.0",
                  "T.cast(n[0] % 5, 'float32')"]  # fmt: skip
        return draw(st.sampled_from([*leaves, *([f"a[{k}]", f"a[3 - {k}]"] if k else [])]))
    one, other = (values(draw, count, k, depth - 1) for _ in range(2))
    if kind == 8:
        return f"T.if_then_else({condition(draw, k)}, {one}, {other})"
    return f"T.max({one}, {other})" if kind == 7 else f"({one} {'+-'[kind % 2]} {other})"


def condition(draw, k: str | None) -> str:
    of_k = ["k % 2 == 0", "t + k < 20"] if k else []
    return draw(st.sampled_from(["t < 10", "t % 3 == 1", "tx == 0", "v > 1.0", "bx == 0", *of_k]))


def statements(draw, count: int, depth: int, k: str | None = None) -> list[str]:
    """Draw a statement, as lines; threads meet at the top alone."""
    kind = draw(st.integers(0, 13 if depth == DEPTH else 9 if depth else 5))
    value = values(draw, count, k)
    if kind < 2:
        return [f"v = {value}" if k is None else f"v = T.min(v + {value}, 64.0)"]
    if kind == 2:
        return [f"a[{k or draw(st.integers(0, 3))}] = {value}"]
    if kind == 3:
        return [f"h[{k or 2}] = H[{places(draw, count, k)}]"]
    if kind == 4:
        return [f"n[0] = (n[0] + {draw(st.integers(1, 5))}) % 32"]
    if kind == 5:
        return [f"T.atomic_add(C[{draw(st.sampled_from(['t % 8', 'tx % 2']))}], n[0])"]
    inner = [line for _ in range(draw(st.integers(1, 3)))
             for line in statements(draw, count, depth - 1, k)]  # fmt: skip
    if kind < 9 and k is None:
        loop = draw(st.sampled_from(["serial", "serial", "unroll", "vectorized"]))
        stop = "n[0] % 4" if loop == "serial" and draw(st.integers(0, 3)) == 0 else "4"
        inside = [line for _ in range(draw(st.integers(1, 3)))
                  for line in statements(draw, count, 0, "k")]  # fmt: skip
        if loop == "vectorized":  # its iterations may run at once
            inside = [
                f"a[k] = X[{places(draw, count, 'k')}]",
                f"h[k] = H[{places(draw, count, 'k')}]",
            ]
        return [f"for k in T.{loop}({stop}):", *("    " + line for line in inside)]
    if kind == 9:
        return [f"if {condition(draw, k)}:", *("    " + line for line in inner)]
    if kind == 10:
        return ["S[t] = v", SYNC, f"v = S[(t + {draw(st.integers(0, 9))}) % {count}]", SYNC]
    if kind == 11:
        reader = draw(st.sampled_from([f"({count} - 1 - t)", "(t // 2)", f"((t * 3) % {count})"]))
        return ["for k in T.serial(4):", f"    R[t, k] = {values(draw, count, 'k', 1)}", SYNC,
                "for k in T.serial(4):", f"    a[k] = R[{reader}, k]", SYNC]  # fmt: skip
    if kind == 12 and count % 32 == 0:
        return [f"v = T.shfl_xor(v, {draw(st.integers(1, 7))})"]
    if kind == 13 and count == 64:  # a warp's own way, in which its threads meet
        role = [f"T.fill(a, {draw(st.integers(0, 3))})", "S[t] = v", "T.sync_threads(1, 32)",
                "v = S[31 - t]", "T.sync_threads(1, 32)"]  # fmt: skip
        return ["if t < 32:", *("    " + line for line in role)]
    return inner


@st.composite
def programs(draw) -> Threads:
    """Draw a program whose threads touch what others do only where all of them meet."""
    shape = draw(st.sampled_from(SHAPES))
    names = ("tx", "ty", "tz")[: len(shape)]
    lines = [f"{name} = T.get_thread_binding({i})" for i, name in enumerate(names)]
    number = " + ".join(
        name if i == 0 else f"{name} * {math.prod(shape[:i])}" for i, name in enumerate(names)
    )
    count = math.prod(shape)
    body = [line for _ in range(draw(st.integers(2, 5))) for line in statements(draw, count, DEPTH)]
    source = TEXT.format(
        size=SIZE, blocks=BLOCKS, count=count, shape=shape,
        threads="".join(f"        {line}\n" for line in [*lines, f"t = {number}"]),
        body="".join(f"        {line}\n" for line in body),
    )  # fmt: skip
    return Threads(source, count)


def check(program: Threads, tmp_path) -> None:
    file = tmp_path / f"threads{abs(hash(program.source))}.py"
    file.write_text(program.source)
    func = runpy.run_path(str(file), {"T": T})["main"]
    rng = np.random.default_rng(0)
    given = [
        rng.integers(-3, 4, SIZE).astype(np.float32), rng.integers(0, 4, SIZE).astype(np.float16),
        rng.integers(0, 9, SIZE, dtype=np.int32), np.zeros((BLOCKS, program.count), np.float32),
        np.zeros((BLOCKS, program.count * 4), np.float32), np.zeros(8, np.int32),
    ]  # fmt: skip
    found = []
    for worth_it in (0.0, 1e9, vectorize_threads.WORTH_IT):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(vectorize_threads, "WORTH_IT", worth_it)
            kernel = runtime.load(compile(func, store=ArtifactStore(tmp_path / str(worth_it))))
        found.append([x.copy() for x in given])
        kernel(*found[-1])
    found.append([x.copy() for x in given])
    run(func, *found[-1])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(one, other, program.source)


FIXTURES = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=4, deadline=None, suppress_health_check=FIXTURES)
@given(program=programs())
def test_random_programs_of_threads_agree(program, tmp_path) -> None:
    check(program, tmp_path)


@pytest.mark.exhaustive
@settings(max_examples=200, deadline=None, suppress_health_check=FIXTURES)
@given(program=programs())
def test_more_random_programs_of_threads_agree(program, tmp_path) -> None:
    check(program, tmp_path)
