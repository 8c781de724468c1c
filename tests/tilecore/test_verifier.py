"""The verifier: each fault is found, placed and told apart; all are listed at once."""

from __future__ import annotations

import dataclasses

import pytest

import tilecore.language as T
from tilecore import kernels
from tilecore.errors import InvalidProgram, ScopeError, ShapeMismatch, TypeMismatch
from tilecore.ir import nodes
from tilecore.ir.expr import Load, Var, const
from tilecore.ir.nodes import PrimFunc, Seq
from tilecore.ir.verifier import faults, verify
from tilecore.ir.visitor import walk

GEMM = kernels.get("gemm")


def gemm() -> PrimFunc:
    problem = GEMM.parse_problem({"m": 64, "n": 64, "k": 64})
    return GEMM.program(problem, dict(GEMM.default_config()))


def test_the_library_is_well_formed() -> None:
    assert faults(gemm()) == []


def program_with(body) -> PrimFunc:
    @T.prim_func
    def program(A: T.Tensor((16, 16), "float32"), H: T.Tensor((16, 16), "float16")):
        with T.Kernel(1) as b:
            a = T.alloc_shared((16, 16), "float32")
            h = T.alloc_shared((16, 16), "float16")
            c = T.alloc_fragment((16, 16), "float32")
            T.copy(A, a)
            T.copy(H, h)
            body(A, a, h, c, b)

    return program


def fill_and_gemm(first, second):
    def body(A, a, h, c, b):
        chosen = {"A": A, "a": a, "h": h, "c": c}
        T.clear(c)
        T.gemm(chosen[first], chosen[second], c)

    return body


def gemm_into_global(A, a, h, c, b):
    T.gemm(a, a, A)


def copy_in_parallel(A, a, h, c, b):
    for _ in T.Parallel(4):
        T.copy(A, a)


def accumulate_into_nothing(A, a, h, c, b):
    T.gemm(a, a, c)
    T.copy(c, A)


def index_beyond_a_tile(A, a, h, c, b):
    T.copy(a[0, 16], A[0, 0])


def loop_variable_after_its_loop(A, a, h, c, b):
    for i in T.serial(4):
        last = i
    T.copy(a[last, 0], A[0, 0])


def tile_after_its_loop(A, a, h, c, b):
    for _ in T.serial(4):
        inner = T.alloc_local((4,), "float32")
        T.clear(inner)
    T.copy(inner[0], A[0, 0])


def unknown_symbol(A, a, h, c, b):
    T.copy(a[Var("nowhere"), 0], A[0, 0])


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (fill_and_gemm("a", "h"), TypeMismatch, "float32 and float16"),
        (gemm_into_global, ScopeError, "global tensor `A`"),
        (copy_in_parallel, ScopeError, r"Copy stands inside T\.Parallel"),
        (accumulate_into_nothing, ScopeError, "`c` is read but nothing ever sets it"),
        (index_beyond_a_tile, ShapeMismatch, "index of `a`, axis 1: expected 0 to 15, found 16"),
        (loop_variable_after_its_loop, ScopeError, "`i` is used after its scope has ended"),
        (tile_after_its_loop, ScopeError, r"`local` \(local\) is used after its scope has ended"),
        (unknown_symbol, ScopeError, "`nowhere` has no value here"),
    ],
)
def test_single_faults_have_their_own_class(body, kind, text) -> None:
    with pytest.raises(kind, match=text) as caught:
        verify(program_with(body))
    assert caught.value.span is not None
    assert caught.value.span.line > 0


def test_all_faults_are_listed() -> None:
    def body(A, a, h, c, b):
        T.gemm(a, h, c)
        T.copy(a[0, 16], A[0, 0])
        T.gemm(a, a, A)

    with pytest.raises(InvalidProgram) as caught:
        verify(program_with(body))
    assert caught.value.fields["count"] == 4
    for text in ("float32 and float16", "axis 1", "global tensor", "nothing ever sets it"):
        assert text in str(caught.value)


def rebuilt(func: PrimFunc, old: type, **changes) -> PrimFunc:
    """Return ``func`` with the first statement of a kind changed, as a broken pass would."""

    def change(stmt):
        if isinstance(stmt, old):
            return dataclasses.replace(stmt, **changes)
        if isinstance(stmt, Seq):
            return Seq(tuple(change(s) for s in stmt.stmts), stmt.span)
        if hasattr(stmt, "body"):
            return dataclasses.replace(stmt, body=change(stmt.body))
        return stmt

    return dataclasses.replace(func, body=change(func.body))


def test_faults_of_passes_are_found_too() -> None:
    func = gemm()
    alloc = next(s for s in walk(func.body) if isinstance(s, nodes.Alloc))
    assert faults(rebuilt(func, nodes.Gemm, clear_accum=const(1)))
    assert faults(rebuilt(func, nodes.For, step=const(0)))
    region = nodes.Region(alloc.buffer, (const(0),), (const(1),))
    assert faults(rebuilt(func, nodes.Copy, src=region))
    wrong = nodes.Store(alloc.buffer, (const(0),), const(0.0))
    assert any("indices" in e.message for e in faults(dataclasses.replace(func, body=wrong)))
    bare = nodes.If(Load(alloc.buffer, (const(0), const(0)), alloc.buffer.dtype), Seq(()))
    assert any("condition" in e.message for e in faults(dataclasses.replace(func, body=bare)))
