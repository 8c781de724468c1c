"""The printer: canonical, deterministic text; digests that follow it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilecore.language as T
from tilecore import kernels
from tilecore.ir.analysis import free_vars, output_positions
from tilecore.ir.expr import Expr, Var, binary, cast, const, select
from tilecore.ir.nodes import PrimFunc
from tilecore.ir.printer import format_expr, format_func, program_digest
from tilecore.ir.substitute import substitute
from tilecore.ir.values.evaluate import evaluate
from tilecore.ir.verifier import verify
from tilecore.kernels.definition import knob_symbols

GEMM = kernels.get("gemm")
X, Y = Var("x"), Var("y")


def gemm(**problem: int | str | bool) -> PrimFunc:
    parsed = GEMM.parse_problem({"m": 512, "n": 256, "k": 128, **problem})
    return GEMM.program(parsed, dict(GEMM.default_config()))


def test_gemm_snapshot(snapshot) -> None:
    snapshot("gemm", format_func(gemm()))


def test_symbolic_gemm_snapshot(snapshot) -> None:
    problem = GEMM.parse_problem({"m": 512, "n": 256, "k": 128})
    snapshot("gemm_symbolic", format_func(GEMM.program(problem, knob_symbols(GEMM))))


def test_statements_snapshot(snapshot) -> None:
    @T.prim_func
    def program(A: T.Tensor((64, T.dynamic("n")), "float16"), Out: T.Tensor((64,), "int32")):
        with T.Kernel(8, 2, threads=(64, 2)) as (bx, by):
            tile = T.alloc_shared((8, 16), "float32")
            T.use_swizzle(4)
            T.fill(tile, -T.infinity("float32"))
            T.copy(A[bx * 8, by * 16], tile)
            count = T.alloc_var("int32", init=0)
            while count < 3:
                count += 1
            for i, j in T.Parallel(8, 16):
                x = tile[i, j]
                if x > 0 and i % 2 == 0:
                    tile[i, j] = T.exp2(-x) / (1.0 + x)
                elif not x < -1:
                    tile[i, j] = T.if_then_else(j < 4, T.min(x, 2), T.cast(i, "float32"))
                else:
                    tile[i, j] = 0
            for i in T.unroll(0, 8, 2):
                Out[i] = (i - (count - 1)) * 3 - i // 2
            assert count == 3, "counted"

    snapshot("statements", format_func(program))


def test_retracing_gives_the_same_text_and_digest() -> None:
    assert format_func(gemm()) == format_func(gemm())
    assert program_digest(gemm()) == program_digest(gemm())
    assert len(program_digest(gemm())) == 32
    assert program_digest(gemm()) != program_digest(gemm(transpose_b=True))
    assert program_digest(gemm()) != program_digest(gemm(k=129))


def test_symbolic_trace_with_values_equals_direct_trace() -> None:
    problem = GEMM.parse_problem({"m": 100, "n": 70, "k": 45, "transpose_a": True})
    symbolic = GEMM.program(problem, knob_symbols(GEMM))
    config = dict(GEMM.default_config().replace(block_M=48, block_N=32, block_K=16))
    knobs = free_vars(symbolic)
    assert {v.name for v in knobs} == {"block_M", "block_N", "block_K", "num_stages", "threads"}
    verify(symbolic, knobs)
    filled = substitute(symbolic, {v: config[v.name] for v in knobs})
    assert format_func(filled) == format_func(GEMM.program(problem, config))
    assert output_positions(filled) == (2,)


def test_equal_names_are_told_apart() -> None:
    a, b = Var("i"), Var("i")
    assert format_expr(a + b + a) == "i + i_1 + i"


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (X - (Y - 1), "x - (y - 1)"),
        ((X - Y) - 1, "x - y - 1"),
        ((X + Y) * 2, "(x + y) * 2"),
        (X // 2 % 3, "x // 2 % 3"),
        (-(X + Y), "-(x + y)"),
        (const(1.0, "float16"), "float16(1.0)"),
        (cast(X, "float32") * 0.5, "float32(x) * 0.5"),
        (select(X > 0, X, 0), "select(x > 0, x, 0)"),
    ],
)
def test_parentheses(expr: Expr, text: str) -> None:
    assert format_expr(expr) == text


def expressions() -> st.SearchStrategy[Expr]:
    leaves = st.sampled_from([X, Y]) | st.integers(-9, 9).map(const)
    ops = st.sampled_from(["add", "sub", "mul", "min", "max"])
    return st.recursive(leaves, lambda inner: st.builds(binary, ops, inner, inner), max_leaves=12)


@settings(max_examples=150, deadline=None)
@given(expressions(), st.integers(-50, 50), st.integers(-50, 50))
def test_text_of_an_expression_means_the_expression(expr: Expr, x: int, y: int) -> None:
    """Python reads the text back to the value that the evaluator gives."""
    found = int(evaluate(expr, {X: x, Y: y}))
    expected = eval(format_expr(expr), {"x": x, "y": y, "min": min, "max": max})
    assert found == int(np.int64(expected).astype(np.int32))
