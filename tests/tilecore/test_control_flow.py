"""Loops, jumps, macros and variables: compiled programs against the interpreter and Python."""

import numpy as np
import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore import runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.errors import InvalidProgram, ScopeError, TypeMismatch, UnsupportedSyntax
from tilecore.interpreter import run
from tilecore.ir import nodes
from tilecore.ir.expr import const
from tilecore.ir.verifier import verify


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ArtifactStore(tmp_path_factory.mktemp("artifacts"))


def both(store, func, *arrays):
    """Return the arrays after the compiled program ran; the interpreter must agree."""
    oracle, compiled = [np.copy(a) for a in arrays], [np.copy(a) for a in arrays]
    run(func, *oracle)
    runtime.load(compile(func, store=store))(*compiled)
    for got, want in zip(compiled, oracle, strict=True):
        np.testing.assert_array_equal(got, want)
    return compiled


def test_break_and_continue_in_serial_loops(store):
    @T.prim_func
    def main(X: T.Tensor((6, 20), "int32"), Y: T.Tensor((6, 3), "int32")):
        with T.Kernel(6) as b:
            total = T.alloc_var("int32")
            last = T.alloc_var("int32", -1)
            for i in T.serial(20):
                if X[b, i] < 0:
                    break
                if X[b, i] % 2 == 1:
                    continue
                total += X[b, i]
                last = i
            Y[b, 0] = total
            Y[b, 1] = last
            count = T.alloc_var("int32")
            for i in T.unroll(2, 20, 3):
                for j in T.serial(i):
                    if j > 3:
                        T.loop_break()
                    count += 1
                if i > 10:
                    break
            Y[b, 2] = count

    x = np.random.default_rng(0).integers(-1, 40, (6, 20), np.int32)
    _, y = both(store, main, x, np.zeros((6, 3), np.int32))
    for row, (total, last, _) in zip(x, y, strict=True):
        end = next((i for i, v in enumerate(row) if v < 0), 20)
        even = [i for i in range(end) if row[i] % 2 == 0]
        assert (total, last) == (row[even].sum(), even[-1] if even else -1)
    assert (y[:, 2] == 2 + 4 + 4 + 4).all()


def test_a_loop_of_one_iteration_keeps_its_break(store):
    @T.prim_func
    def main(Y: T.Tensor((3,), "int32")):
        with T.Kernel(1):
            for i in T.serial(3):
                for _j in T.serial(1):
                    if i == 1:
                        break
                    Y[i] = 7

    assert both(store, main, np.zeros(3, np.int32))[0].tolist() == [7, 0, 7]


def test_while_loops_with_jumps(store):
    @T.prim_func
    def main(N: T.Tensor((8,), "int32"), Y: T.Tensor((8, 2), "int32")):
        with T.Kernel(8) as b:
            n = T.alloc_var("int32", N[b])
            steps = T.alloc_var("int32", 0)
            while n != 1:
                steps += 1
                if n % 2 == 0:
                    n //= 2
                    continue
                n = 3 * n + 1
            Y[b, 0] = steps
            k = T.alloc_var("int32", 0)
            while True:
                k += 1
                if k * k >= N[b]:
                    break
            Y[b, 1] = k

    n = np.array([1, 2, 3, 6, 7, 9, 25, 97], np.int32)
    _, y = both(store, main, n, np.zeros((8, 2), np.int32))
    assert y[:, 0].tolist() == [0, 1, 7, 8, 16, 19, 23, 118]
    assert y[:, 1].tolist() == [1, 2, 2, 3, 3, 3, 5, 10]


def test_break_of_python_loops_happens_while_tracing(store):
    @T.prim_func
    def main(Y: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            for i in [0, 1, 2, 3]:
                if i == 2:
                    break
                Y[i] = i + 10

    assert both(store, main, np.zeros(4, np.int32))[0].tolist() == [10, 11, 0, 0]
    with pytest.raises(UnsupportedSyntax, match="no end at run time"):

        @T.prim_func
        def late(Y: T.Tensor((4,), "int32")):
            with T.Kernel(1):
                for i in [0, 1, 2, 3]:
                    if Y[i] == 2:
                        break


def test_jumps_outside_serial_loops_are_faults():
    y = nodes.Buffer("Y", (const(4),), T.int32)
    launch = nodes.KernelLaunch((T.Var("b"),), (const(4),), (const(1),), nodes.Jump("break"))
    with pytest.raises(ScopeError, match="`break` stands outside a serial loop"):
        verify(nodes.PrimFunc("main", (y,), launch))


def test_gemm_accumulation_that_ends_early(store):
    @T.prim_func
    def main(
        A: T.Tensor((16, 64), "float32"),
        B: T.Tensor((64, 16), "float32"),
        Stop: T.Tensor((1,), "int32"),
        C: T.Tensor((16, 16), "float32"),
    ):
        with T.Kernel(1):
            a = T.alloc_shared((16, 16), "float32")
            b = T.alloc_shared((16, 16), "float32")
            c = T.alloc_fragment((16, 16), "float32")
            T.clear(c)
            for k in T.serial(4):
                if k >= Stop[0]:
                    break
                T.copy(A[0, k * 16], a)
                T.copy(B[k * 16, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)

    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((16, 64), np.float32), rng.standard_normal((64, 16), np.float32)
    kernel = runtime.load(compile(main, store=store))
    for stop in range(5):
        c = np.full((16, 16), np.nan, np.float32)
        kernel(a, b, np.array([stop], np.int32), c)
        want = a[:, : stop * 16].astype(np.float64) @ b[: stop * 16]
        np.testing.assert_allclose(c, want, rtol=1e-4, atol=1e-4)


def test_references_in_macros_are_assigned_in_place(store):
    @T.macro
    def advance(x: T.Ref, y: T.Var, by, *, twice=False):
        x += by
        y = x * 2 if twice else x
        by = 100
        return x + y

    @T.macro
    def total(*values):
        result = values[0]
        for v in values[1:]:
            result = result + v
        return result

    @T.prim_func
    def main(Y: T.Tensor((6,), "int32")):
        with T.Kernel(1):
            x, step = T.alloc_var("int32", 5), T.alloc_var("int32", init=3)
            Y[2] = advance(x, Y[1], step, twice=True)
            Y[0] = x
            Y[3] = step
            Y[4] = total(x, step, 1)
            x, step = step, x
            Y[5] = x * 10 + step

    assert both(store, main, np.zeros(6, np.int32))[0].tolist() == [8, 16, 24, 3, 12, 38]
    with pytest.raises(ValueError, match="or an element for `x"):

        @T.prim_func
        def wrong(Y: T.Tensor((6,), "int32")):
            with T.Kernel(1):
                advance(3, Y[0], 1)


def test_parallel_and_nested_loops_with_dynamic_extents(store):
    n = T.dynamic("n")

    @T.prim_func
    def main(X: T.Tensor((n,), "int32"), Y: T.Tensor((n, n), "int32"), limit: T.int32):
        with T.Kernel(1):
            span = T.min(limit, n)
            for i, j in T.grid(span, span):
                Y[i, j] = X[i] - X[j]
            for i in T.Parallel(span):
                Y[i, -1 + n] = i
            for i in T.serial(n - 1, -1, -2):
                Y[i, 0] = -i

    kernel = runtime.load(compile(main, store=store))
    for size, limit in ((1, 1), (5, 3), (40, 100), (20, -4)):
        x = np.random.default_rng(size).integers(0, 9, size, np.int32)
        y, want = np.full((size, size), -1, np.int32), np.full((size, size), -1, np.int32)
        span = max(0, min(limit, size))
        want[:span, :span] = x[:span, None] - x[None, :span]
        want[:span, -1] = np.arange(span)
        index = np.arange(size - 1, -1, -2)
        want[index, 0] = -index
        oracle = y.copy()
        kernel(x, y, limit)
        run(main, x, oracle, limit)
        np.testing.assert_array_equal(y, want)
        np.testing.assert_array_equal(oracle, want)


def test_steps_known_at_run_time_only(store):
    @T.prim_func
    def main(Y: T.Tensor((40,), "int32"), start: T.int32, stop: T.int64, step: T.int32):
        with T.Kernel(1):
            for i in T.serial(start, stop, step):
                Y[i] = Y[i] * 100 + T.cast(i, "int32") + 1

    kernel = runtime.load(compile(main, store=store))
    for bounds in ((0, 40, 1), (3, 40, 7), (39, -1, -5), (5, 5, 2), (5, 3, 1), (3, 5, -1)):
        y, oracle, want = (np.zeros(40, np.int32) for _ in range(3))
        for i in range(*bounds):
            want[i] = want[i] * 100 + i + 1
        kernel(y, *bounds)
        run(main, oracle, *bounds)
        np.testing.assert_array_equal(y, want)
        np.testing.assert_array_equal(oracle, want)


def test_tensors_without_axes(store):
    @T.prim_func
    def main(X: T.Tensor((8,), "float32"), S: T.Tensor((), "float32")):
        with T.Kernel(threads=64):
            total = T.alloc_local((1,), "float32")
            total[0] = 0
            for i in T.serial(8):
                total[0] += X[i]
            S[()] = total[0]

    x = np.arange(8, dtype=np.float32)
    assert both(store, main, x, np.array(0, np.float32))[1] == 28


def test_limits_casts_and_attributes_in_expressions(store):
    @T.prim_func
    def main(X: T.Tensor((12, 3), "float16"), Y: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            Y[0] = T.max_value(X.dtype)
            Y[1] = T.min_value("int8")
            Y[2] = X.shape[0] * 100 + X.shape[1]
            Y[3] = T.float32(1) / 4
            Y[4] = T.cast(X[-1, -2], torch.float32)
            Y[5] = T.int32(2.75) + T.align_up(X.shape[0], 8) - T.align_up(-3, 16) - 16
            Y[6] = -T.infinity(np.float32)
            Y[7] = 1.0 if 0 < X[0, 0] <= 2 < 3 else 0.5
            T.func_attr({"author": "test"})

    x = np.random.default_rng(2).standard_normal((12, 3)).astype(np.float16)
    x[0, 0] = 2
    _, y = both(store, main, x, np.zeros(8, np.float32))
    assert y.tolist() == [65504, -128, 1203, 0.25, float(x[-1, -2]), 2, -np.inf, 1]
    assert main.attrs["author"] == "test"
    assert "Y[3] = " in main.script()


def test_initial_values_must_fit_their_type():
    with pytest.raises(ValueError, match="exceeds maximum of float32"):

        @T.prim_func
        def main(Y: T.Tensor((1,), "float32")):
            with T.Kernel(1):
                value = T.alloc_var(T.float32, init=1e300)
                Y[0] = value


def test_parameters_may_be_annotated_in_the_body():
    @T.prim_func
    def kernel(A, n):
        A: T.Tensor[[64, 32], T.float32]
        n: T.int32
        B = T.empty([64, 32], T.float32)
        T.annotate_pass_configs({"tl.enable_fast_math": True})
        T.annotate_compile_flags(["-O3"])
        with T.Kernel(64) as i:
            for j in T.Parallel(32):
                B[i, j] = A[i, j] + n
        return B

    a = torch.randn(64, 32)
    torch.testing.assert_close(tilelang.compile(kernel)(a, 3), a + 3)
    assert kernel.attrs["tilelang_compile_flags"] == ("-O3",)
    with pytest.raises(TypeMismatch, match="parameter `x` annotated"):

        @T.prim_func
        def bare(x):
            with T.Kernel(1):
                T.alloc_var("int32")


def test_constants_of_strides_and_several_outputs():
    @tilelang.jit
    def split(X):
        M, N, S = T.const("M, N, S")
        X: T.StridedTensor[[M, N], [S, 1], T.float32]
        low, high = T.empty([M, N], T.float32), T.empty([N], T.float32)
        with T.Kernel(M) as i:
            for j in T.Parallel(N):
                low[i, j] = T.min(X[i, j], 0)
        with T.Kernel(1):
            for j in T.serial(N):
                high[j] = X[0, j]
                for i in T.serial(1, M):
                    high[j] = T.max(high[j], X[i, j])
        return low, high

    x = torch.randn(20, 90)[:, 3:40]
    low, high = split(x)
    torch.testing.assert_close(low, x.clamp(max=0))
    torch.testing.assert_close(high, x.max(0).values)


def test_all_faults_of_a_program_are_listed():
    x = nodes.Buffer("X", (T.dynamic("m") % 2,), T.int32)
    launch = nodes.KernelLaunch((T.Var("b"),), (const(4),), (const(1),), nodes.Jump("continue"))
    with pytest.raises(InvalidProgram, match="2 fault"):
        verify(nodes.PrimFunc("main", (x,), launch))


def test_large_tiles_inside_a_while_with_break(run_both):
    @T.prim_func
    def main(A: T.Tensor((8, 64, 64), "float32"), B: T.Tensor((2, 64, 64), "float32")):
        with T.Kernel(2) as b:
            at = T.alloc_var("int32")
            at = b
            while at < 8:
                tile = T.alloc_shared((64, 64), "float32")
                total = T.alloc_fragment((64, 64), "float32")
                T.copy(A[at, 0, 0], tile)
                T.copy(B[b, 0, 0], total)
                for k in T.serial(3):
                    scaled = T.alloc_fragment((64, 64), "float32")
                    for i, j in T.Parallel(64, 64):
                        scaled[i, j] = tile[i, j] * (k + 1)
                    if at == 5:
                        break
                    for i, j in T.Parallel(64, 64):
                        total[i, j] += scaled[i, j]
                T.copy(total, B[b, 0, 0])
                at = at + 2

    a = np.random.default_rng(0).standard_normal((8, 64, 64), np.float32)
    expected = np.stack([6 * a[0::2].sum(0), 6 * (a[1] + a[3] + a[7])])
    run_both(main, [a], [np.zeros((2, 64, 64), np.float32)], [expected], rtol=1e-4, atol=1e-4)


def test_while_as_a_context_manager(store):
    @T.prim_func
    def main(X: T.Tensor((5,), "int32"), Y: T.Tensor((5,), "int32")):
        with T.Kernel(5) as b:
            state = T.alloc_fragment((1,), "int32")
            steps = T.alloc_var("int32", 0)
            state[0] = X[b]
            with T.While(state[0] > 1):
                if steps == 50:
                    T.loop_break()
                state[0] = T.if_then_else(state[0] % 2 == 0, state[0] // 2, 3 * state[0] + 1)
                steps += 1
            Y[b] = steps

    x = np.array([1, 2, 7, 27, 0], np.int32)
    _, y = both(store, main, x, np.zeros(5, np.int32))
    assert y.tolist() == [0, 1, 16, 50, 0]
    with pytest.raises(TypeMismatch, match="a condition that a loop can change"):

        @T.prim_func
        def endless(X: T.Tensor((5,), "int32")):
            with T.Kernel(1), T.While(True):
                X[0] = 1
