"""Products of warpgroups that run while threads compute: inferred, and as programs ask for them."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tests.tilecore.cuda.tile_programs import attention
from tilecore.codegen.cubin import read_features
from tilecore.codegen.nvrtc import compile_cuda
from tilecore.emulator import ALL_SCHEDULES, LATE
from tilecore.errors import EmulationError, TypeMismatch


def latent_attention(S, D, pe, block, stages, threads=128, accum="float32"):
    """Heads of a query over one latent per key, which is key and value, as in MLA; own lengths."""
    heads, BN = 64, block

    @T.prim_func
    def main(
        Q: T.Tensor((4, heads, D), "float16"),
        Q_pe: T.Tensor((4, heads, pe), "float16"),
        KV: T.Tensor((4, S, D), "float16"),
        K_pe: T.Tensor((4, S, pe), "float16"),
        lengths: T.Tensor((4,), "int32"),
        Out: T.Tensor((4, heads, D), "float32"),
    ):
        with T.Kernel(4, threads=threads) as b:
            Q_s = T.alloc_shared((heads, D), "float16")
            Q_pe_s = T.alloc_shared((heads, pe), "float16")
            KV_s = T.alloc_shared((BN, D), "float16")
            K_pe_s = T.alloc_shared((BN, pe), "float16")
            scores = T.alloc_fragment((heads, BN), accum)
            weights = T.alloc_fragment((heads, BN), "float16")
            out = T.alloc_fragment((heads, D), "float32")
            top = T.alloc_fragment((heads,), "float32")
            before = T.alloc_fragment((heads,), "float32")
            shrink = T.alloc_fragment((heads,), "float32")
            part = T.alloc_fragment((heads,), "float32")
            total = T.alloc_fragment((heads,), "float32")
            T.copy(Q[b, :, :], Q_s)
            T.copy(Q_pe[b, :, :], Q_pe_s)
            T.fill(out, 0)
            T.fill(total, 0)
            T.fill(top, -1e30)
            for k in T.Pipelined(T.ceildiv(lengths[b], BN), num_stages=stages):
                T.copy(KV[b, k * BN : (k + 1) * BN, :], KV_s)
                T.copy(K_pe[b, k * BN : (k + 1) * BN, :], K_pe_s)
                T.clear(scores)
                T.gemm(Q_s, KV_s, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.gemm(Q_pe_s, K_pe_s, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(top, before)
                for i, j in T.Parallel(heads, BN):
                    scores[i, j] = T.if_then_else(k * BN + j < lengths[b], scores[i, j], -1e30)
                T.reduce_max(scores, top, dim=1, clear=False)
                for i in T.Parallel(heads):
                    shrink[i] = T.exp2(before[i] - top[i])
                for i, j in T.Parallel(heads, D):
                    out[i, j] *= shrink[i]
                for i, j in T.Parallel(heads, BN):
                    scores[i, j] = T.exp2(scores[i, j] - top[i])
                T.copy(scores, weights)
                T.reduce_sum(scores, part, dim=1)
                T.gemm(weights, KV_s, out, policy=T.GemmWarpPolicy.FullRow)
                for i in T.Parallel(heads):
                    total[i] = total[i] * shrink[i] + part[i]
            for i, j in T.Parallel(heads, D):
                Out[b, i, j] = T.if_then_else(total[i] > 0, out[i, j] / total[i], 0)

    return main


def latent_arguments(S, D, pe, lengths):
    rng = np.random.default_rng(2)
    shapes = [(4, 64, D), (4, 64, pe), (4, S, D), (4, S, pe)]
    arrays = [rng.uniform(-1, 1, s).astype(np.float16) for s in shapes]
    return [*arrays, np.array(lengths, np.int32), np.full((4, 64, D), 7, np.float32)]


def latent_reference(q, q_pe, kv, k_pe, lengths, out):
    expected = np.zeros(out.shape)
    for b, count in enumerate(lengths):
        if count:
            keys, more = (x[b, :count].astype(np.float64) for x in (kv, k_pe))
            scores = q[b].astype(np.float64) @ keys.T + q_pe[b].astype(np.float64) @ more.T
            weights = np.exp2(scores - scores.max(-1, keepdims=True))
            expected[b] = weights @ keys / weights.sum(-1, keepdims=True)
    return expected


@pytest.mark.few(1)
@pytest.mark.parametrize("stages", [2, 3])
def test_every_number_of_iterations(stages):
    """None, one, a part of one and several; one tile is read by the first and the last product."""
    arrays = latent_arguments(176, 64, 32, [0, 64, 30, 170])
    plan = run_emulated(latent_attention(176, 64, 32, 64, stages), "h100", arrays, ALL_SCHEDULES)
    np.testing.assert_allclose(arrays[-1], latent_reference(*arrays), atol=2e-3)
    (launch,) = plan.launches.values()
    (pipeline,) = launch.pipelines.values()
    order = pipeline.overlap
    assert order is not None
    assert (len(order.first), order.last.c.buffer.name) == (2, "out")
    written = {"out", "weights"}
    assert all(written & {s.dst.buffer.name} for s in order.rest if hasattr(s, "dst"))
    assert "overlapped: out of an iteration is summed up while the next runs" in plan.explain()


def test_one_tile_cannot_serve_two_iterations():
    arrays = latent_arguments(128, 64, 32, [128, 0, 1, 64])
    plan = run_emulated(latent_attention(128, 64, 32, 64, 1), "h100", arrays, (LATE,))
    np.testing.assert_allclose(arrays[-1], latent_reference(*arrays), atol=2e-3)
    assert "do not overlap (two iterations need tiles of which there is one)" in plan.explain()


def test_registers_decide():
    plan, _, _ = lowered(attention(1, 4096, 8, 128, (192, 128), 2, 384, "float16", False), "h100")
    assert "do not overlap (it takes about 192 registers a thread, there are 160)" in plan.explain()
    (launch,) = plan.launches.values()
    assert all(p.overlap is None for p in launch.pipelines.values())


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("dim", "block", "threads"), [(128, (128, 192), 256), (64, (192, 128), 384)]
)
def test_softmax_runs_between_products_without_spills(dim, block, threads):
    _, _, source = lowered(attention(1, 4096, 8, dim, block, 1, threads, "float16", True), "h100")
    cubin = compile_cuda(source.text, source.arch)
    (features,) = read_features(cubin.data, source.arch).values()
    assert (cubin.spills, "C75" in cubin.log) == (0, False)
    assert features.opcodes["HGMMA"] > 0
    kernel = source.text.rpartition('extern "C"')[2]
    loop = kernel[kernel.index("tc_wgmma_rs") :]  # the last product of the iteration before
    places = [loop.index(c) for c in ("tc_wgmma_wait_1", "exp2", "tc_wgmma_wait_0")]
    assert places == sorted(places)


@pytest.mark.few(1)
@pytest.mark.parametrize("removed", ["tc_wgmma_wait_1();", "tc_wgmma_wait_0();"])
def test_both_waits_are_needed(removed):
    arrays = latent_arguments(176, 64, 32, [170, 170, 100, 170])
    with pytest.raises(EmulationError):
        run_emulated(latent_attention(176, 64, 32, 64, 2), "h100", arrays, (LATE,), without=removed)


def test_products_that_nothing_needs_yet_run_together():
    """Two products side by side: the second is issued before the first is waited for."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
        D: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            A_s = T.alloc_shared((64, 64), "float16")
            B_s = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            d = T.alloc_fragment((64, 64), "float32")
            T.copy(A, A_s)
            T.copy(B, B_s)
            T.gemm(A_s, B_s, c, clear_accum=True)
            T.gemm(B_s, A_s, d, clear_accum=True)
            for i, j in T.Parallel(64, 64):
                c[i, j] += 1
            T.copy(c, C)
            T.copy(d, D)
            T.gemm(A_s, B_s, c)
            T.fill(A_s, 0)
            T.copy(c, D)

    rng = np.random.default_rng(4)
    a, b = (rng.uniform(-1, 1, (64, 64)).astype(np.float16) for _ in range(2))
    c, d = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
    run_emulated(main, "h100", [a, b, c, d], ALL_SCHEDULES)
    product = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(c, product + 1, atol=1e-4)
    np.testing.assert_allclose(d, 2 * product + 1, atol=1e-4)
    kernel = lowered(main, "h100")[2].text.rpartition('extern "C"')[2]
    waits = [line.strip() for line in kernel.splitlines() if "tc_wgmma_wait" in line]
    assert waits == ["tc_wgmma_wait_1();", "tc_wgmma_wait_0();", "tc_wgmma_wait_0();"]


def grouped_gemm(M, N, K, call):
    """A producer and a consumer, which leaves one product running when it frees the tile before."""
    BM, BN, BK, S = 64, 64, 64, 3

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=256) as (bx, by):
            A_s = T.alloc_shared((S, BM, BK), "float16")
            B_s = T.alloc_shared((S, BK, BN), "float16")
            C_l = T.alloc_fragment((BM, BN), "float32")
            full = T.alloc_barrier([128] * S)
            empty = T.alloc_barrier([128] * S)
            tx = T.get_thread_binding()
            if tx >= 128:
                for k in T.serial(T.ceildiv(K, BK)):
                    T.mbarrier_wait_parity(empty[k % S], (k // S + 1) % 2)
                    T.tma_copy(A[by * BM, k * BK], A_s[k % S, :, :], barrier=full[k % S])
                    T.tma_copy(B[k * BK, bx * BN], B_s[k % S, :, :], barrier=full[k % S])
                    T.mbarrier_arrive(full[k % S])
            else:
                T.clear(C_l)
                for k in T.serial(T.ceildiv(K, BK)):
                    T.mbarrier_wait_parity(full[k % S], k // S % 2)
                    call(A_s[k % S, :, :], B_s[k % S, :, :], C_l)
                    T.wait_wgmma(1)
                    if k > 0:
                        T.mbarrier_arrive(empty[(k - 1) % S])
                T.copy(C_l, C[by * BM, bx * BN])

    return main


def grouped_arguments(M, N, K):
    rng = np.random.default_rng(5)
    a, b = (rng.uniform(-1, 1, s).astype(np.float16) for s in ((M, K), (K, N)))
    return [a, b, np.full((M, N), 7, np.float32)]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("target", "call"),
    [
        ("h100", T.wgmma_gemm),
        ("h100", lambda a, b, c: T.gemm(a, b, c, wg_wait=-1)),
        ("a100", T.wgmma_gemm),
    ],
)
def test_a_program_waits_for_groups(target, call):
    arrays = grouped_arguments(100, 72, 520)
    func = grouped_gemm(100, 72, 520, call)
    run_emulated(func, target, arrays, ALL_SCHEDULES)
    expected = arrays[0].astype(np.float64) @ arrays[1].astype(np.float64)
    np.testing.assert_allclose(arrays[2], expected, atol=1e-4)
    text = lowered(func, target)[2].text
    kernel = text.rpartition('extern "C"')[2]
    waits = [line.strip() for line in kernel.splitlines() if "tc_wgmma_wait" in line]
    assert waits == (["tc_wgmma_wait_1();", "tc_wgmma_wait_0();"] if target == "h100" else [])
    if target == "h100":
        cubin = compile_cuda(text, "sm_90a")
        assert "C75" not in cubin.log


def test_a_wait_of_the_program_is_needed():
    """A tile that is freed too early is written while a product reads it."""
    func = grouped_gemm(64, 64, 520, T.wgmma_gemm)
    with pytest.raises(EmulationError):
        run_emulated(
            func, "h100", grouped_arguments(64, 64, 520), ALL_SCHEDULES,
            without="tc_wgmma_wait_1();",
        )  # fmt: skip


@pytest.mark.parametrize(
    "call", [lambda: T.wait_wgmma(-1), lambda: T.wait_wgmma(T.alloc_var("int32"))]
)
def test_waits_are_known_numbers(call):
    with pytest.raises(TypeMismatch, match="number of products that may still run"):

        @T.prim_func
        def main(A: T.Tensor((4,), "float32")):
            with T.Kernel(1, threads=128):
                call()


@pytest.mark.exhaustive
def test_descriptors_of_many_products_do_not_spill():
    """The compiler would keep the descriptors of the instructions of a loop in registers."""
    parts, turns = 8, 8

    @T.macro
    def products(Q_s, K_s, full, scores, parity):
        for part in T.unroll(parts):
            T.mbarrier_wait_parity(full[part], parity)
            T.wgmma_gemm(
                Q_s[part, :, :], K_s[part, :, :], scores, transpose_B=True, clear_accum=part == 0
            )

    @T.macro
    def role(Q_s, K_s, V_s, full, Out, number):
        scores = T.alloc_fragment((64, 64), "float32")
        weights = T.alloc_fragment((64, 64), "float16")
        out = T.alloc_fragment((64, 256), "float32")
        T.clear(out)
        products(Q_s, K_s, full, scores, 0)
        T.wait_wgmma(0)
        for k in T.serial(turns):
            T.copy(scores, weights)
            T.wgmma_gemm(weights, V_s, out)
            if k + 1 < turns:
                products(Q_s, K_s, full, scores, (k + 1) % 2)
            T.wait_wgmma(0)
        T.copy(out, Out[number, :, :])

    @T.prim_func
    def main(Out: T.Tensor((2, 64, 256), "float32")):
        with T.Kernel(1, threads=256):
            Q_s = T.alloc_shared((parts, 64, 64), "float16")
            K_s = T.alloc_shared((parts, 64, 64), "float16")
            V_s = T.alloc_shared((64, 256), "float16")
            full = T.alloc_barrier([128] * parts)
            tx = T.get_thread_binding()
            for tile in (Q_s, K_s, V_s):
                T.fill(tile, 0)
            if tx < 128:
                role(Q_s, K_s, V_s, full, Out, 0)
            else:
                role(Q_s, K_s, V_s, full, Out, 1)

    _, _, source = lowered(main, "h100", is_ordered=False)  # nothing fills the tiles
    cubin = compile_cuda(source.text, source.arch)
    (features,) = read_features(cubin.data, source.arch).values()
    assert (cubin.spills, features.opcodes["HGMMA"]) == (0, 2 * (4 + 2 * 4 * parts))


@pytest.mark.few(1)
def test_a_reduction_in_which_threads_meet_waits_for_products():
    """What their tiles hold may be replaced behind it, as behind a barrier."""
    M, N, K = 128, 64, 64

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"),
        X: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32"),
        D: T.Tensor((K, N), "float16"),
    ):  # fmt: skip
        with T.Kernel(1, threads=256):
            A_s = T.alloc_shared((M, K), "float16")
            B_s = T.alloc_shared((K, N), "float16")
            C_l = T.alloc_fragment((M, N), "float32")
            x = T.alloc_fragment((M, N), "float32")
            sums = T.alloc_fragment((N,), "float32")
            T.copy(A, A_s)
            T.copy(B, B_s)
            T.copy(X, x)
            T.clear(C_l)
            T.gemm(A_s, B_s, C_l)
            T.reduce_sum(x, sums, dim=0)
            for i, j in T.Parallel(K, N):
                B_s[i, j] = sums[j]
            T.copy(C_l, C)
            T.copy(B_s, D)

    rng = np.random.default_rng(4)
    a, b = (rng.uniform(-1, 1, s).astype(np.float16) for s in ((M, K), (K, N)))
    x = rng.integers(-4, 5, (M, N)).astype(np.float32)
    c, d = np.zeros((M, N), np.float32), np.zeros((K, N), np.float16)
    run_emulated(main, "h100", [a, b, x, c, d], ALL_SCHEDULES)
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=1e-4)
    np.testing.assert_array_equal(d, np.broadcast_to(x.sum(0), (K, N)))


@pytest.mark.few(1)
def test_iterations_with_reductions_in_which_threads_meet_do_not_overlap():
    """They stand in place of barriers around the tile of weights, in the order of the program."""
    rows, keys, dim, steps = 128, 64, 64, 3

    @T.prim_func
    def main(
        Q: T.Tensor((rows, dim), "float16"), K: T.Tensor((steps * keys, dim), "float16"),
        V: T.Tensor((steps * keys, dim), "float16"), Out: T.Tensor((rows, dim), "float32"),
        tops: T.Tensor((keys,), "float32"), sums: T.Tensor((keys,), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=256):
            q = T.alloc_shared((rows, dim), "float16")
            k = T.alloc_shared((keys, dim), "float16")
            v = T.alloc_shared((keys, dim), "float16")
            weights = T.alloc_shared((rows, keys), "float16")
            scores = T.alloc_fragment((rows, keys), "float32")
            out = T.alloc_fragment((rows, dim), "float32")
            top = T.alloc_fragment((keys,), "float32")
            total = T.alloc_fragment((keys,), "float32")
            T.copy(Q, q)
            T.clear(out)
            for n in T.Pipelined(steps, num_stages=2):
                T.copy(K[n * keys, 0], k)
                T.copy(V[n * keys, 0], v)
                T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                T.reduce_max(scores, top, dim=0)
                T.copy(scores, weights)
                T.reduce_sum(scores, total, dim=0)
                T.gemm(weights, v, out)
            T.copy(out, Out)
            T.copy(top, tops)
            T.copy(total, sums)

    rng = np.random.default_rng(5)
    shapes = ((rows, dim), (steps * keys, dim), (steps * keys, dim))
    q, k, v = (rng.uniform(-1, 1, s).astype(np.float16) for s in shapes)
    out, top, total = np.zeros((rows, dim), np.float32), *np.zeros((2, keys), np.float32)
    plan = run_emulated(main, "h100", [q, k, v, out, top, total], ALL_SCHEDULES)
    scores = q.astype(np.float32) @ k.astype(np.float32).T
    weights = scores.astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(out, weights @ v.astype(np.float32), atol=2e-2)
    np.testing.assert_allclose(top, scores[:, -keys:].max(0), atol=1e-3)
    np.testing.assert_allclose(total, scores[:, -keys:].sum(0), atol=1e-3)
    assert "do not overlap (threads meet in the loop)" in plan.explain()


@pytest.mark.few(1)
@pytest.mark.parametrize("flag", [0, 1])
def test_products_that_only_one_branch_waits_for_are_still_under_way_behind_it(flag):
    """What other warps multiply is not written before the threads have met once more."""
    M, N, K = 128, 64, 64

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"),
        flags: T.Tensor((1,), "int32"), C: T.Tensor((M, N), "float32"),
        X: T.Tensor((M, N), "float32"), D: T.Tensor((K, N), "float16"),
    ):  # fmt: skip
        with T.Kernel(1, threads=256):
            A_s = T.alloc_shared((M, K), "float16")
            B_s = T.alloc_shared((K, N), "float16")
            sums = T.alloc_fragment((M, N), "float32")
            x = T.alloc_fragment((M, N), "float32")
            T.copy(A, A_s)
            T.copy(B, B_s)
            T.clear(sums)
            T.clear(x)
            T.wgmma_gemm(A_s, B_s, sums)
            if flags[0] > 0:
                for _ in T.serial(2):
                    for i, j in T.Parallel(M, N):
                        x[i, j] += sums[i, j]
            T.sync_threads()
            for i, j in T.Parallel(K, N):
                B_s[i, j] = 5
            T.wait_wgmma(0)
            T.copy(sums, C)
            T.copy(x, X)
            T.copy(B_s, D)

    rng = np.random.default_rng(6)
    a, b = (rng.integers(-2, 3, s).astype(np.float16) for s in ((M, K), (K, N)))
    c, x = np.zeros((2, M, N), np.float32)
    d = np.zeros((K, N), np.float16)
    run_emulated(main, "h100", [a, b, np.array([flag], np.int32), c, x, d], ALL_SCHEDULES)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))
    np.testing.assert_array_equal(x, 2 * flag * c)
    assert (d == 5).all()


def test_a_product_of_warps_completes_no_product_of_warpgroups_before_it():
    """Found by a random program: a wait for the second one was taken for one for both."""
    M, N, K = 128, 64, 64

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"),
        S: T.Tensor((16, K), "float16"), C: T.Tensor((M, N), "float32"),
        D: T.Tensor((16, N), "float32"), E: T.Tensor((M, K), "float16"),
    ):  # fmt: skip
        with T.Kernel(1, threads=256):
            A_s = T.alloc_shared((M, K), "float16")
            B_s = T.alloc_shared((K, N), "float16")
            S_s = T.alloc_shared((16, K), "float16")
            sums = T.alloc_fragment((M, N), "float32")
            few = T.alloc_fragment((16, N), "float32")
            T.copy(A, A_s)
            T.copy(B, B_s)
            T.copy(S, S_s)
            T.wgmma_gemm(A_s, B_s, sums, clear_accum=True)
            T.wgmma_gemm(S_s, B_s, few, clear_accum=True)
            T.fill(S_s, 5)
            T.sync_threads()
            T.fill(A_s, 3)
            T.wait_wgmma(0)
            T.copy(sums, C)
            T.copy(few, D)
            T.copy(A_s, E)

    rng = np.random.default_rng(8)
    a, b, s = (rng.integers(-2, 3, n).astype(np.float16) for n in ((M, K), (K, N), (16, K)))
    c, d, e = np.zeros((M, N), np.float32), np.zeros((16, N), np.float32), np.zeros_like(a)
    plan = run_emulated(main, "h100", [a, b, s, c, d, e], ALL_SCHEDULES)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))
    np.testing.assert_array_equal(d, s.astype(np.float32) @ b.astype(np.float32))
    assert (e == 3).all()
    (launch,) = plan.launches.values()
    assert {g.kind for g in launch.gemms.values()} == {"wgmma", "mma"}


@pytest.mark.few(1)
@pytest.mark.parametrize("turns", [0, 2])
def test_a_product_runs_on_across_the_barrier_before_a_loop(turns):
    """Found by a random program: behind a loop that may not run nobody knew of it any more."""
    M, N = 128, 64

    @T.prim_func
    def main(
        A: T.Tensor((M, N), "float16"), B: T.Tensor((N, N), "float16"),
        turns: T.Tensor((1,), "int32"), X: T.Tensor((M, N), "float32"),
        C: T.Tensor((2, M, N), "float32"), Y: T.Tensor((M, N), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=256):
            A_s = T.alloc_shared((M, N), "float16")
            B_s = T.alloc_shared((N, N), "float16")
            more = T.alloc_shared((N, N), "float16")
            staged = T.alloc_shared((M, N), "float32")
            sums = T.alloc_fragment((M, N), "float32")
            others = T.alloc_fragment((M, N), "float32")
            x = T.alloc_fragment((M, N), "float32")
            T.fill(others, 1)
            T.copy(A, A_s)
            T.copy(B, B_s)
            T.copy(B, more)
            T.copy(X, x)
            T.wgmma_gemm(A_s, more, sums, clear_accum=True)
            for i, j in T.Parallel(M, N):
                sums[i, j] = 1
            T.wgmma_gemm(A_s, B_s, sums, clear_accum=True)
            for k in T.serial(turns[0]):
                if k > 0:
                    T.copy(others, C[1, :, :])
                for i, j in T.Parallel(N, N):
                    more[i, j] = 1
                T.copy(sums, C[0, :, :])
                T.wgmma_gemm(A_s, more, others, clear_accum=True)
            T.copy(x, staged)
            T.copy(staged, Y)
            T.copy(others, C[1, :, :])

    rng = np.random.default_rng(9)
    a, b = (rng.integers(-2, 3, s).astype(np.float16) for s in ((M, N), (N, N)))
    x = rng.standard_normal((M, N), dtype=np.float32)
    c, y = np.zeros((2, M, N), np.float32), np.zeros((M, N), np.float32)
    run_emulated(main, "h100", [a, b, np.array([turns], np.int32), x, c, y], ALL_SCHEDULES)
    np.testing.assert_array_equal(y, x)
    wide, product = a.astype(np.float32), a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(c[0], product if turns else 0)
    np.testing.assert_array_equal(c[1], np.repeat(wide.sum(1, keepdims=True), N, 1) if turns else 1)
