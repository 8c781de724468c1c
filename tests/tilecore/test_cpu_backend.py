"""The CPU back end against the interpreter: compiled programs give what they mean."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilecore.language as T
from tilecore import kernels, runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.errors import AliasError, ArgumentError, ArtifactError, InvalidConfig, LayoutConflict
from tilecore.interpreter import run
from tilecore.ir.dtype import DType
from tilecore.ir.layout import Layout

GEMM = kernels.get("gemm")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ArtifactStore(tmp_path_factory.mktemp("artifacts"))


def run_both(func, inputs, outputs, store, config=None, **tolerance):
    """Run the program compiled and interpreted; outputs start as NaN; compare."""
    expected = [np.copy(o) for o in outputs]
    run(func, *[np.copy(i) for i in inputs], *expected, seed=3)
    runtime.load(compile(func, config=config, store=store))(*inputs, *outputs)
    for got, want in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(
            got.astype(np.float64),
            want.astype(np.float64),
            **{"rtol": 1e-5, "atol": 1e-5, **tolerance},
        )


def gemm_case(m, n, k, config=None, store=None, **fields):
    problem = GEMM.parse_problem({"m": m, "n": n, "k": k, **fields})
    knobs = {**GEMM.default_config(), **(config or {})}
    func = GEMM.program(problem, knobs)
    inputs = [
        np.ascontiguousarray(x) for x in GEMM.inputs(problem, np.random.default_rng(m + n + k))
    ]
    out = np.full((m, n), np.nan).astype(DType(problem["out_dtype"]).numpy)
    runtime.load(compile(func, config=knobs, store=store))(*inputs, out)
    expected = GEMM.reference(problem, inputs)[0]
    bound = {"float16": 2e-3, "bfloat16": 2e-2}.get(problem["out_dtype"], 1e-6)
    error = np.abs(out.astype(np.float64) - expected).max()
    assert error <= bound * np.sqrt(k) * 4, (config, error)


@pytest.mark.few(1)
@pytest.mark.covering("pack_a pack_b")
@pytest.mark.parametrize("pack_a", ["none", "rows", "block"])
@pytest.mark.parametrize("pack_b", ["block", "grid"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (64, 96, 64), (131, 77, 63)])
def test_gemm_is_right_for_every_packing_and_ragged_shapes(store, shape, pack_a, pack_b):
    gemm_case(*shape, {"pack_a": pack_a, "pack_b": pack_b, "block_M": 48, "block_N": 64}, store)


@pytest.mark.few(1)
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_gemm_transposes(store, trans_a, trans_b):
    gemm_case(70, 90, 45, {"pack_a": "none"}, store, transpose_a=trans_a, transpose_b=trans_b)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_gemm_element_types(store, dtype):
    accum = "float64" if dtype == "float64" else "float32"
    gemm_case(50, 70, 90, None, store, dtype=dtype, out_dtype=dtype, accum_dtype=accum)


@pytest.mark.exhaustive
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_gemm_random_configs(store, data):
    def pick(name, values):
        return data.draw(st.sampled_from(values), label=name)

    micro_n = pick("micro_n", [1, 2, 3, 4])
    micro_m = pick("micro_m", [m for m in (1, 3, 6, 8, 14) if m * micro_n + micro_n + 1 <= 16])
    config = {
        "block_M": pick("block_M", [8, 17, 64]), "block_N": pick("block_N", [16, 40, 96]),
        "block_K": pick("block_K", [16, 50, 128]), "micro_m": micro_m, "micro_n": micro_n,
        "pack_a": pick("pack_a", ["none", "rows", "block"]),
        "pack_b": pick("pack_b", ["block", "grid"]),
    }  # fmt: skip
    m, n, k = (data.draw(st.integers(1, 150), label=x) for x in "mnk")
    gemm_case(m, n, k, config, store)


@pytest.mark.few(1)
@pytest.mark.parametrize("trans_b", [False, True])
def test_a_product_is_the_vector_operand_of_the_next(store, trans_b):
    @T.prim_func
    def main(A: T.Tensor((40, 40), "float32"), C: T.Tensor((40, 40), "float32")):
        with T.Kernel(1, threads=128) as _:
            A_s = T.alloc_shared((40, 40), "float32")
            first = T.alloc_fragment((40, 40), "float32")
            second = T.alloc_fragment((40, 40), "float32")
            T.copy(A, A_s)
            T.gemm(A_s, A_s, first, clear_accum=True)
            T.gemm(A_s, first, second, transpose_B=trans_b, clear_accum=True)
            T.copy(second, C)

    a = np.random.default_rng(0).standard_normal((40, 40), dtype=np.float32)
    run_both(main, [a], [np.full((40, 40), np.nan, np.float32)], store, atol=1e-3)


def relu_gemm(M, N, K, block=32):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float32"),
        B: T.Tensor((K, N), "float32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=128) as (bx, by):
            A_s = T.alloc_shared((block, block), "float32")
            B_s = T.alloc_shared((block, block), "float32")
            C_l = T.alloc_fragment((block, block), "float32")
            T.clear(C_l)
            for ko in T.Pipelined(T.ceildiv(K, block), num_stages=2):
                T.copy(A[by * block, ko * block], A_s)
                T.copy(B[ko * block, bx * block], B_s)
                T.gemm(A_s, B_s, C_l)
            for i, j in T.Parallel(block, block):
                C_l[i, j] = T.max(C_l[i, j], 0)
            T.copy(C_l, C[by * block, bx * block])

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", [(64, 64, 64), (50, 70, 33)])
def test_epilogue_on_the_accumulator(store, shape):
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s, dtype=np.float32) for s in ((m, k), (k, n)))
    run_both(relu_gemm(m, n, k), [a, b], [np.full((m, n), np.nan, np.float32)], store)


def test_elementwise_with_ragged_edges_and_math(store):
    M, N = 37, 53

    @T.prim_func
    def main(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 16), threads=64) as (bx, by):
            for i, j in T.Parallel(16, 32):
                x = X[by * 16 + i, bx * 32 + j]
                Y[by * 16 + i, bx * 32 + j] = T.if_then_else(x > 0, T.exp(x), T.exp2(x) - 1.0)

    x = np.random.default_rng(1).standard_normal((M, N), dtype=np.float32)
    run_both(main, [x], [np.full((M, N), np.nan, np.float32)], store)


def test_neighbours_outside_the_tensor_are_zero(store):
    N = 100

    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 32), threads=32) as bx:
            for i in T.Parallel(32):
                p = bx * 32 + i
                Y[p] = X[p - 1] + 2.0 * X[p] + X[p + 1]

    x = np.random.default_rng(2).standard_normal(N, dtype=np.float32)
    run_both(main, [x], [np.full(N, np.nan, np.float32)], store)


def test_serial_loops_variables_and_control_flow(store):
    N = 24

    @T.prim_func
    def main(X: T.Tensor((N, N), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(N, threads=32) as bx:
            total = T.alloc_var("float32")
            row = T.alloc_local((N,), "float32")
            total = 0.0
            for j in T.serial(N):
                row[j] = X[bx, j]
            for j in T.serial(1, N, 2):
                if row[j] > 0:
                    total += row[j]
                else:
                    total -= 0.5 * row[j]
            Y[bx] = total

    x = np.random.default_rng(3).standard_normal((N, N), dtype=np.float32)
    run_both(main, [x], [np.full(N, np.nan, np.float32)], store)


def test_two_gemms_through_a_converted_tile(store):
    B, D = 32, 48

    @T.prim_func
    def main(
        Q: T.Tensor((B, D), "float16"),
        K: T.Tensor((B, D), "float16"),
        R: T.Tensor((B, D), "float32"),
    ):
        with T.Kernel(1, threads=128):
            Q_s = T.alloc_shared((B, D), "float16")
            K_s = T.alloc_shared((B, D), "float16")
            S = T.alloc_fragment((B, B), "float32")
            P = T.alloc_fragment((B, B), "float16")
            acc = T.alloc_fragment((B, D), "float32")
            T.copy(Q, Q_s)
            T.copy(K, K_s)
            T.gemm(Q_s, K_s, S, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(B, B):
                P[i, j] = T.exp2(S[i, j] * 0.1)
            T.clear(acc)
            T.gemm(P, K_s, acc)
            T.copy(acc, R)

    rng = np.random.default_rng(4)
    q, k = (rng.standard_normal((B, D)).astype(np.float16) for _ in range(2))
    run_both(main, [q, k], [np.full((B, D), np.nan, np.float32)], store, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_gather_by_loaded_indices_of_either_width(store, dtype):
    N = 40

    @T.prim_func
    def main(
        X: T.Tensor((N, 8), "float32"), P: T.Tensor((N,), dtype), Y: T.Tensor((N, 8), "float32")
    ):
        with T.Kernel(N, threads=32) as bx:
            slot = P[bx]
            for j in T.Parallel(8):
                Y[bx, j] = X[slot, j]

    rng = np.random.default_rng(6)
    x = rng.standard_normal((N, 8), dtype=np.float32)
    p = rng.integers(-3, N + 3, N).astype(dtype)  # outside: 0
    run_both(main, [x, p], [np.full((N, 8), np.nan, np.float32)], store)


def test_several_launches_run_in_order(store):
    N = 40

    @T.prim_func
    def main(
        X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32"), Z: T.Tensor((N,), "float32")
    ):
        with T.Kernel(T.ceildiv(N, 16), threads=16) as bx:
            for i in T.Parallel(16):
                Y[bx * 16 + i] = X[bx * 16 + i] * 2.0
        with T.Kernel(T.ceildiv(N, 16), threads=16) as bx:
            for i in T.Parallel(16):
                Z[bx * 16 + i] = Y[N - 1 - (bx * 16 + i)]

    x = np.random.default_rng(5).standard_normal(N, dtype=np.float32)
    run_both(main, [x], [np.full(N, np.nan, np.float32), np.full(N, np.nan, np.float32)], store)


# --- calls ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def relu(store):
    return runtime.load(compile(relu_gemm(32, 48, 16), store=store))


def tensors():
    return (
        np.ones((32, 16), np.float32),
        np.ones((16, 48), np.float32),
        np.empty((32, 48), np.float32),
    )


@pytest.mark.parametrize(
    ("position", "change", "expected"),
    [
        (0, lambda x: x[:, :8], "shape"),
        (0, lambda x: x.ravel(), "rank 2"),
        (1, lambda x: x.astype(np.float64), "dtype float32"),
        (0, lambda x: np.asfortranarray(x), "contiguous"),
        (2, lambda x: [1.0], "a torch.Tensor or numpy.ndarray"),
        (2, lambda x: np.lib.stride_tricks.as_strided(x, writeable=False), "a writable tensor"),
    ],
)
def test_wrong_arguments_are_named(relu, position, change, expected):
    arguments = list(tensors())
    arguments[position] = change(arguments[position])
    with pytest.raises(ArgumentError) as caught:
        relu(*arguments)
    assert expected in str(caught.value)
    assert f"argument {position}" in str(caught.value)


def test_wrong_number_of_arguments(relu):
    with pytest.raises(ArgumentError, match="3 tensors"):
        relu(*tensors()[:2])


def test_memory_shared_with_an_output_is_refused(store):
    memory = np.zeros((64, 64), np.float32)
    kernel = runtime.load(compile(relu_gemm(64, 64, 64), store=store))
    with pytest.raises(AliasError, match="share memory"):
        kernel(memory, np.ones((64, 64), np.float32), memory)


def test_torch_tensors_without_copy_and_unaligned_views(relu):
    torch = pytest.importorskip("torch")
    a = torch.randn(32 * 16 + 1)[1:].view(32, 16)  # 4-byte aligned only
    b, c = torch.randn(16, 48), torch.full((32, 48), float("nan"))
    relu(a, b, c)
    torch.testing.assert_close(c, torch.relu(a @ b))
    with pytest.raises(ArgumentError, match="cpu"):
        relu(a.to("meta"), b, c)


def test_read_only_inputs_are_accepted(relu):
    a, b, c = tensors()
    a.flags.writeable = False
    relu(a, b, c)
    np.testing.assert_allclose(c, 16.0)


# --- compile errors and artifacts -------------------------------------------------------------


def test_register_tile_beyond_the_budget_is_refused(store):
    with pytest.raises(InvalidConfig, match="micro_m"):
        gemm_case(64, 64, 64, {"micro_m": 30, "micro_n": 8}, store)


def test_impossible_layout_names_buffer_and_line(store):
    @T.prim_func
    def main(X: T.Tensor((8, 8), "float32"), Y: T.Tensor((8, 8), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((8, 8), "float32")
            T.annotate_layout({tile: Layout((8, 8), lambda i, j: i)})
            T.copy(X, tile)
            T.copy(tile, Y)

    with pytest.raises(LayoutConflict) as caught:
        compile(main, store=store)
    assert "tile" in str(caught.value)
    assert "test_cpu_backend.py" in str(caught.value)


def test_artifact_is_found_again_and_damage_is_an_error(store):
    func = relu_gemm(16, 16, 16)
    artifact = compile(func, store=store)
    assert compile(func, store=store).path == artifact.path
    assert artifact.manifest.parameters[2].is_written
    (artifact.path / "manifest.json").write_text("{}")
    with pytest.raises(ArtifactError, match="schema"):
        runtime.load(artifact.path)
    assert compile(func, store=store).manifest.name == "main"


def test_runtime_loads_no_compiler(relu):
    import subprocess
    import sys

    code = (
        "import sys; import numpy as np; from tilecore import runtime;"
        "k = runtime.load(sys.argv[1]);"
        "a, b, c = np.ones((32, 16), 'f4'), np.ones((16, 48), 'f4'), np.empty((32, 48), 'f4');"
        "k(a, b, c); assert (c == 16).all(); assert 'tvm' not in sys.modules;"
        "assert 'libtvm_compiler' not in open('/proc/self/maps').read()"
    )
    command = [sys.executable, "-c", code, str(relu.artifact.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_calls_after_the_first_are_checked_as_closely(store):
    import torch

    @T.prim_func
    def main(X: T.Tensor((8, 4), "float32"), Y: T.Tensor((8, 4), "float32")):
        with T.Kernel(1):
            for i, j in T.Parallel(8, 4):
                Y[i, j] = X[i, j] * 2

    kernel = runtime.load(compile(main, store=store))
    x, y = torch.randn(8, 4), torch.zeros(8, 4)
    for _ in range(2):
        kernel(x, y)
        assert torch.equal(y, x * 2)
    memory = torch.zeros(100)
    with pytest.raises(AliasError):
        kernel(memory[:32].view(8, 4), memory[16:48].view(8, 4))
    for bad, text in (
        (torch.zeros(4, 8).T, "contiguous"),
        (torch.zeros(8, 5), r"shape \(8, 4\)"),
        (torch.zeros(8, 4, dtype=torch.float64), "dtype float32"),
        (torch.zeros(8, 4, device="meta"), "on the cpu"),
        (torch.zeros(129, dtype=torch.uint8)[1:].view(8, 16), "dtype float32"),
        (torch.zeros(8, 4).to_sparse(), r"found float32 in torch.sparse_coo\n.*to_dense"),
        (torch.zeros(8, 4).to_sparse_csr(), "found float32 in torch.sparse_csr"),
        (np.zeros((8, 4), ">f4"), "found >f4"),
    ):
        with pytest.raises(ArgumentError, match=text):
            kernel(x, bad)
    with pytest.raises(ArgumentError, match="2 tensors"):
        kernel(x)
    kernel(x.clone().requires_grad_(), y)
    kernel(x.numpy(), y)
    kernel(torch.nn.Parameter(x), y)
    assert torch.equal(y, x * 2)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_accumulators_are_rounded_once_per_product(store, dtype):
    import torch

    @T.prim_func
    def main(
        A: T.Tensor((70, 512), dtype), B: T.Tensor((512, 90), dtype), C: T.Tensor((70, 90), dtype)
    ):
        with T.Kernel(T.ceildiv(90, 32), T.ceildiv(70, 16)) as (bx, by):
            a = T.alloc_shared((16, 256), dtype)
            b = T.alloc_shared((256, 32), dtype)
            c = T.alloc_fragment((16, 32), dtype)
            T.clear(c)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[by * 16, k * 256], a)
                T.copy(B[k * 256, bx * 32], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 16, bx * 32])

    kind = getattr(torch, dtype)
    a, b = (torch.randn(s).to(kind) for s in ((70, 512), (512, 90)))
    c = torch.zeros(70, 90, dtype=kind)
    runtime.load(compile(main, store=store))(a, b, c)
    first = a[:, :256].double() @ b[:256].double()
    want = first + a[:, 256:].double() @ b[256:].double()
    step = {"float16": 2**-11, "bfloat16": 2**-8}[dtype]
    # The sum after 256 terms and the last one are rounded, and float32 in between.
    bound = step * 1.01 * (want.abs() + first.abs()) + 1e-4
    assert ((c.double() - want).abs() <= bound).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("pack_a", ["none", "rows", "block"])
@pytest.mark.parametrize("clears", ["fill", "argument"])
def test_rows_and_columns_outside_the_operands_are_zero_in_the_accumulator(store, pack_a, clears):
    """A second product and a whole copy see what lies beyond the edge of A and of B."""

    @T.prim_func
    def main(
        A: T.Tensor((23, 20), "float32"),
        B: T.Tensor((20, 37), "float32"),
        Whole: T.Tensor((2, 16, 96), "float32"),
        Sums: T.Tensor((2, 96), "float32"),
    ):
        with T.Kernel(2) as by:
            a = T.alloc_shared((16, 8), "float32")
            b = T.alloc_shared((8, 96), "float32")
            c = T.alloc_fragment((16, 96), "float32")
            sums = T.alloc_fragment((96,), "float32")
            if clears == "fill":
                T.clear(c)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[by * 16, k * 8], a)
                T.copy(B[k * 8, 0], b)
                T.gemm(a, b, c, clear_accum=(k == 0) if clears == "argument" else False)
            T.reduce_sum(c, sums, dim=0)
            T.copy(c, Whole[by, 0, 0])
            T.copy(sums, Sums[by, 0])

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s, np.float32) for s in ((23, 20), (20, 37)))
    exact = np.zeros((32, 96))
    exact[:23, :37] = a.astype(np.float64) @ b
    kernel = runtime.load(compile(main, config={"pack_a": pack_a}, store=store))
    for _ in range(3):  # memory that an earlier call has used
        whole = np.full((2, 16, 96), np.nan, np.float32)
        sums = np.full((2, 96), np.nan, np.float32)
        kernel(a, b, whole, sums)
        np.testing.assert_allclose(whole, exact.reshape(2, 16, 96), atol=1e-4)
        np.testing.assert_allclose(sums, exact.reshape(2, 16, 96).sum(1), atol=1e-4)
