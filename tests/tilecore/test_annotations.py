"""What programs state without changing a result: fragments, assertions before the launch."""

import numpy as np
import pytest

import tilecore.language as T
from tilecore import interpreter, runtime
from tilecore.compiler import compile
from tilecore.errors import AssertionFailed, LayoutConflict, ShapeMismatch, TypeMismatch


def test_fragments_are_checked_and_change_nothing():
    def program(fragment):
        @T.prim_func
        def main(A: T.Tensor((8, 32), "float32"), B: T.Tensor((8,), "float32")):
            with T.Kernel(1, threads=32):
                x = T.alloc_fragment((8, 32), "float32")
                total = T.alloc_fragment((8,), "float32")
                T.annotate_layout({x: fragment, total: T.Fragment(
                    (8,), forward_fn=lambda i, rep: (rep, i), replicate=32)})  # fmt: skip
                T.copy(A, x)
                T.reduce_sum(x, total, dim=1)
                T.copy(total, B)

        return main

    a = np.random.default_rng(0).integers(-9, 9, (8, 32)).astype(np.float32)
    for fragment in (
        T.Fragment((8, 32), forward_fn=lambda i, j: (j, i)),
        T.Fragment((8, 32), forward_thread_fn=lambda i, j: j, forward_index_fn=lambda i, j: [i, 0]),
    ):
        b = np.zeros(8, np.float32)
        runtime.load(compile(program(fragment)))(a, b)
        np.testing.assert_array_equal(b, a.sum(1))
    with pytest.raises(LayoutConflict, match="two elements in one place"):
        compile(program(T.Fragment((8, 32), forward_fn=lambda i, j: (j, i // 2))))
    with pytest.raises(ShapeMismatch, match="layout of `x`"):
        program(T.Fragment((8, 8), forward_fn=lambda i, j: (j, i)))
    with pytest.raises(TypeMismatch, match="forward_fn or forward_thread_fn"):
        T.Fragment((8, 8))


def test_an_assertion_before_the_launch():
    m, n = T.dynamic("m"), T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((m,), "float32"), B: T.Tensor((n,), "float32")):
        assert m == n, "the tensors differ in length"
        with T.Kernel(T.ceildiv(m, 8)) as b:
            T.copy(A[b * 8 : b * 8 + 8], B[b * 8])

    kernel = runtime.load(compile(main))
    a = np.arange(21, dtype=np.float32)
    b = np.zeros(21, np.float32)
    kernel(a, b)
    np.testing.assert_array_equal(a, b)
    for run in (kernel, lambda *tensors: interpreter.run(main, *tensors)):
        with pytest.raises(AssertionFailed, match="the tensors differ in length"):
            run(a, np.zeros(20, np.float32))
