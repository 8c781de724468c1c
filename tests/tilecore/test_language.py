"""Primitives: argument forms, extents rules, and what bad arguments get."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import tilecore.language as T
from tilecore import interpreter
from tilecore.errors import ScopeError, ShapeMismatch, TileError, TypeMismatch
from tilecore.ir import nodes
from tilecore.ir.nodes import PrimFunc
from tilecore.ir.visitor import walk


def test_tensor_forms() -> None:
    specs = [
        T.Tensor((4, 8), "float16"),
        T.Tensor[[4, 8], T.float16],
        T.Tensor[(4, 8), "float16"],
        T.Tensor[4, 8, "float16"],
        T.Buffer((4, 8), np.float16),
    ]
    assert {str(s) for s in specs} == {"float16(4, 8)"}
    assert str(T.Tensor(16)) == "float32(16,)"
    assert str(T.Tensor[[T.dynamic("m"), 8], "int8"]) == "int8(m, 8)"


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((-2, 4), "float32"), ((-1,), "float32"), ((2.5,), "float32"), ((4,), "f99")],
)
def test_bad_tensors(shape, dtype) -> None:
    with pytest.raises(TypeMismatch):
        T.Tensor(shape, dtype)


def test_dtypes_are_names_and_casts() -> None:
    assert T.float == "float32"
    assert T.bool == "bool"
    assert T.int == "int32"
    assert T.half == T.float16 == "float16"
    assert T.float16(2).dtype == "float16"
    assert T.cast(3.7, "int32").value == 3
    assert T.Cast("int8", 5).dtype == "int8"
    assert math.isinf(T.infinity("float16").value)
    assert (-T.infinity(T.float32)).value == -math.inf
    assert T.max_value("int8").value == 127
    with pytest.raises(TypeMismatch, match="infinity"):
        T.infinity("int32")


def test_math_folds_python_numbers() -> None:
    assert T.ceildiv(10, 3) == 4
    assert T.cdiv(9, 3) == 3
    assert T.log2(8.0) == 3.0
    assert T.exp2(3) == 8.0
    assert str(T.ceildiv(T.dynamic("n"), 4)) == "(n + 4 - 1) // 4"


def test_copy_extents() -> None:
    @T.prim_func
    def program(A: T.Tensor((2, 64, 64), "float32"), V: T.Tensor((64,), "float32")):
        with T.Kernel(2) as b:
            tile = T.alloc_shared((32, 16), "float32")
            row = T.alloc_shared((1, 64), "float32")
            T.copy(A[b, 32, 48], tile)  # element: right-aligned extents of the other side
            T.copy(tile, A[b, 0:32, 0:16])  # region
            T.copy(A[b, 5, :], row)  # axes of size 1 do not count
            T.copy(row, V)
            T.copy(V[0], A[b, 0, 1])  # two elements: a store

    copies = [s for s in walk(program.body) if isinstance(s, nodes.Copy)]
    shown = [tuple(str(e) for e in c.src.extents) for c in copies]
    assert shown == [("1", "32", "16"), ("32", "16"), ("1", "1", "64"), ("1", "64")]
    assert [str(o) for o in copies[0].src.offsets] == ["b", "32", "48"]
    assert any(isinstance(s, nodes.Store) for s in walk(program.body))


def test_extents_of_slices_simplify() -> None:
    block, n = T.dynamic("block, n")

    @T.prim_func
    def program(A: T.Tensor((n, n), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as b:
            tile = T.alloc_shared((block, 2 * block), "float32")
            T.copy(A[b * block : (b + 1) * block, b * block : b * block + 2 * block], tile)

    copy = next(s for s in walk(program.body) if isinstance(s, nodes.Copy))
    assert [str(e) for e in copy.src.extents] == ["block", "block * 2"]


def failing(body) -> TileError:
    with pytest.raises(TileError) as caught:

        @T.prim_func
        def program(A: T.Tensor((16, 16), "float32"), H: T.Tensor((16,), "int32")):
            with T.Kernel(1):
                a = T.alloc_shared((16, 16), "float32")
                b = T.alloc_shared((8, 16), "float32")
                c = T.alloc_fragment((16, 16), "float32")
                body(A, H, a, b, c)

    return caught.value


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (lambda A, H, a, b, c: T.gemm(a, b, c), ShapeMismatch, "K of A and of B"),
        (lambda A, H, a, b, c: T.gemm(a, a, b), ShapeMismatch, "M of A and of C"),
        (lambda A, H, a, b, c: T.gemm(a, H, c), ShapeMismatch, "two axes"),
        (lambda A, H, a, b, c: T.gemm(a, a, c, transpose_C=True), TypeMismatch, "transpose_C"),
        (lambda A, H, a, b, c: T.copy(a, b), ShapeMismatch, "one shape on both sides"),
        (lambda A, H, a, b, c: T.copy(a, 3), TypeMismatch, "destination of T.copy"),
        (lambda A, H, a, b, c: T.fill(3, 0), TypeMismatch, "T.fill"),
        (lambda A, H, a, b, c: A[0], None, ""),
        (lambda A, H, a, b, c: A[0, 1, 2], ShapeMismatch, r"its shape is \(16, 16\)"),
        (lambda A, H, a, b, c: A[0.5, 1], TypeMismatch, "integer index"),
        (lambda A, H, a, b, c: T.alloc_shared((4,), "float32", "global"), TypeMismatch, "scope"),
        (lambda A, H, a, b, c: T.use_swizzle(4, order="diagonal"), TypeMismatch, "order"),
        (lambda A, H, a, b, c: T.annotate_layout({a: lambda i: i}), ShapeMismatch, "2 indices"),
        (lambda A, H, a, b, c: T.empty((4,), "float32"), ScopeError, "before the kernel starts"),
        (lambda A, H, a, b, c: T.const("M"), ScopeError, "T.dynamic"),
        (lambda A, H, a, b, c: T.Parallel(2.5), TypeMismatch, "loop extent"),
        (lambda A, H, a, b, c: T.serial(0, 8, 0), TypeMismatch, "step"),
        (lambda A, H, a, b, c: T.Kernel(1, 2, 3, 4), ShapeMismatch, "1 to 3 axes"),
    ],
)
def test_bad_arguments(body, kind, text) -> None:
    if kind is None:
        kind, text = ShapeMismatch, "indices of `A`"
    error = failing(body)
    assert isinstance(error, kind)
    assert re.search(text, str(error)), str(error)
    assert error.span is not None


def gemm_program(**options) -> PrimFunc:
    @T.prim_func
    def program(
        A: T.Tensor((16, 8), "float16"),
        B: T.Tensor((8, 16), "float16"),
        C: T.Tensor((16, 16), "float32"),
    ):
        with T.Kernel(1):
            a = T.alloc_shared((16, 8), "float16")
            b = T.alloc_shared((8, 16), "float16")
            c = T.alloc_fragment((16, 16), "float32")
            T.copy(A, a)
            T.copy(B, b)
            for k in T.serial(3):
                T.gemm(a, b, c, clear_accum=k < options["until"], k_pack=2)
            T.copy(c, C)

    return program


@pytest.mark.parametrize(("until", "times"), [(1, 3), (2, 2), (3, 1)])
def test_clear_accum_may_be_an_expression(until: int, times: int) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((16, 8)).astype(np.float16)
    b = rng.standard_normal((8, 16)).astype(np.float16)
    (out,) = interpreter.run(gemm_program(until=until), a, b)
    np.testing.assert_allclose(out, times * (a.astype(float) @ b.astype(float)), rtol=1e-5)


def test_annotations_are_kept() -> None:
    @T.prim_func
    def program(A: T.Tensor((16, 16), "float32")):
        with T.Kernel(1):
            a = T.alloc_shared((16, 16), "float32")
            T.use_swizzle(panel_size=4, order="column")
            T.annotate_layout({a: T.Layout((16, 16), lambda i, j: (i, j ^ (i % 4)))})
            T.copy(A, a)

    found = {s.key: s.value for s in walk(program.body) if isinstance(s, nodes.Annotate)}
    assert found["swizzle"]["order"] == "column"
    (layout,) = found["layout"].values()
    assert layout.is_injective
    assert "annotate layout {a: custom layout of 16x16 in 256 elements" in str(program)


def test_postponed_annotations_see_local_names() -> None:
    m = 12
    dtype = T.float16

    @T.prim_func
    def program(A: T.Tensor((m, 4), dtype), n: T.int32):
        with T.Kernel(1):
            A[0, 0] = n

    assert program.buffers[0].static_shape == (12, 4)
    assert program.params[1].name == "n"


def test_parameter_without_tensor_annotation() -> None:
    with pytest.raises(TypeMismatch, match="parameter `A` annotated with"):

        @T.prim_func
        def program(A):
            with T.Kernel(1):
                pass
