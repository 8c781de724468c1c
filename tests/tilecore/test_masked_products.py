"""Products that a mask makes pointless: where they are left out, and where they must not be."""

import math

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.x86_paths import here, paths
from tilecore import kernels, runtime
from tilecore.compiler import check, compile
from tilecore.errors import InvalidConfig
from tilecore.interpreter import run
from tilecore.ir.dtype import DType
from tilecore.pass_config import lowering_config

PATHS = paths("avx512+avx512_bf16", "avx512", "avx2", "avx512+amx_bf16+amx_tile")
INFINITY = T.infinity("float32")
SKIPS = {"skips_masked": True}
MASKS = {  # is key j hidden from query i?
    "later": lambda i, j: j > i,
    "at once": lambda i, j: j >= i + 7,
    "far back": lambda i, j: T.Or(j > i, j < i - 40),
    "seen": lambda i, j: T.Not(T.And(j <= i + 3, i - j <= 50)),
    "first": lambda i, j: j < 33,
    "rows": lambda i, j: i < 40,
    "twice as fast": lambda i, j: T.Or(2 * j > i + 11, j - i > 90),
    "falling": lambda i, j: i + j > 100,
}
BLOCKS = dict(zip(MASKS, [(32, 48), (50, 64), (96, 100)] * 3, strict=False))


def attention(
    hidden, m=96, n=100, d=24, block=(32, 48), dtype="float32", cond=lambda step: True, first=False
):
    """Return softmax(Q K^T) V under a mask, without a division: the weights are not normalised.

    ``cond(step)``: the mask stands under it; ``first``: before the product that it is of.
    """
    rows, keys = block

    @T.macro
    def mask(scores, bx, step):
        for i, j in T.Parallel(rows, keys):
            row, column = bx * rows + i, step * keys + j
            is_hidden = T.Or(column >= n, hidden(row, column))
            if first:
                scores[i, j] = T.if_then_else(T.Not(is_hidden), 0, -INFINITY)
            else:
                scores[i, j] = T.if_then_else(is_hidden, -INFINITY, scores[i, j])

    @T.prim_func
    def main(
        Q: T.Tensor((m, d), dtype), K: T.Tensor((n, d), dtype), V: T.Tensor((n, d), dtype),
        Out: T.Tensor((m, d), "float32"), S: T.Tensor((m,), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(m, rows), threads=128) as bx:
            q, k, v = (T.alloc_shared((x, d), dtype) for x in (rows, keys, keys))
            scores = T.alloc_fragment((rows, keys), "float32")
            weights = T.alloc_fragment((rows, keys), dtype)
            out = T.alloc_fragment((rows, d), "float32")
            total, part = (T.alloc_fragment((rows,), "float32") for _ in range(2))
            T.copy(Q[bx * rows, 0], q)
            T.clear(out)
            T.clear(total)
            for step in T.serial(T.ceildiv(n, keys)):
                T.copy(K[step * keys, 0], k)
                T.copy(V[step * keys, 0], v)
                if first:
                    mask(scores, bx, step)
                else:
                    T.clear(scores)
                T.gemm(q, k, scores, transpose_B=True)
                if not first and cond(step):
                    mask(scores, bx, step)
                for i, j in T.Parallel(rows, keys):
                    scores[i, j] = T.exp2(scores[i, j] * 0.25 - 1)
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(rows):
                    total[i] += part[i]
                T.copy(scores, weights)
                T.gemm(weights, v, out)
            T.copy(out, Out[bx * rows, 0])
            T.copy(total, S[bx * rows])

    return main


def operands(m=96, n=100, d=24, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((m, d), (n, d), (n, d))
    return [rng.standard_normal(s, np.float32).astype(DType(dtype).numpy) for s in shapes]


def computed(func, artifacts, inputs, path="avx512", **knobs):
    """Return what the compiled program and the interpreter compute, and the artifact's notes."""
    artifact = compile(func, here(path), knobs, artifacts)
    results = []
    for call in (runtime.load(artifact), lambda *tensors: run(func, *tensors)):
        outputs = [np.full(b.static_shape, 7, np.float32) for b in func.buffers[3:]]
        call(*inputs, *outputs)
        results.append(outputs)
    return *results, left_out(artifact.manifest.notes)


def left_out(notes):
    """Return which products of a program are left out: "sums", "weights"."""
    words = {"sums": "no products for sums", "weights": "no products of weights"}
    return {name for name, text in words.items() if any(text in note for note in notes)}


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("hidden", MASKS)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("first", [False, True])
def test_values(path, hidden, dtype, first, artifacts):
    func = attention(MASKS[hidden], block=BLOCKS[hidden], dtype=dtype, first=first)
    found, oracle, _ = computed(func, artifacts, operands(dtype=dtype), path, **SKIPS)
    for one, other in zip(found, oracle, strict=True):
        scale = np.abs(other).max()
        assert np.isfinite(other).all()
        tolerance = 2e-5 if dtype == "float32" else 8e-3
        np.testing.assert_allclose(one / scale, other / scale, atol=tolerance)


@pytest.mark.parametrize(("first", "skips", "expected"), [
    (False, False, {"sums"}), (False, True, {"sums", "weights"}),
    (True, False, set()), (True, True, {"sums", "weights"}),
])  # fmt: skip
def test_which_products_are_left_out(first, skips, expected):
    plan = check(attention(MASKS["later"], first=first), "avx512", {"skips_masked": skips})
    assert left_out(plan.explain().splitlines()) == expected


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_no_row_of_a_register_tile_sees_is_not_multiplied(dtype, artifacts):
    inputs = operands(dtype=dtype)
    inputs[2][32:] = np.nan
    func = attention(MASKS["later"], dtype=dtype)
    found, oracle, _ = computed(func, artifacts, inputs, "avx512", **SKIPS, micro_m=8)
    assert np.isnan(oracle[0][:32]).all()  # 0 times NaN
    assert np.isfinite(found[0][:32]).all()
    assert np.isnan(found[0][33:]).all()


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("hidden", MASKS)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_without_leave_nan_and_infinity_go_where_they_go_in_the_oracle(
    hidden, first, bad, artifacts
):
    func, rng = attention(MASKS[hidden], first=first), np.random.default_rng(3)
    inputs = operands()
    for tensor in inputs:
        tensor[rng.integers(0, len(tensor), 2), rng.integers(0, 24, 2)] = bad
    found, oracle, _ = computed(func, artifacts, inputs)
    for one, other in zip(found, oracle, strict=True):
        np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
        np.testing.assert_array_equal(np.isposinf(one), np.isposinf(other))
        assert np.isnan(other).any() or np.isinf(other).any()


def test_a_mask_that_does_not_run_hides_nothing(artifacts):
    func = attention(MASKS["later"], cond=lambda step: step % 2 == 1)
    found, oracle, parts = computed(func, artifacts, operands(), **SKIPS)
    assert parts == {"sums", "weights"}
    np.testing.assert_allclose(found[0], oracle[0], rtol=1e-4, atol=1e-4)


def test_a_mask_that_can_hide_nothing_is_not_looked_at():
    plan = check(attention(lambda i, j: j > i + 99, n=96), "avx512", SKIPS)
    assert left_out(plan.explain().splitlines()) == set()


def scores_then(after, weigh=None, **knobs):
    """Return what is left out of a product of scores that ``after(scores, bx, lens)`` follows."""

    @T.prim_func
    def main(
        Q: T.Tensor((64, 32), "float32"), V: T.Tensor((64, 32), "float32"),
        lens: T.Tensor((2,), "int32"), Out: T.Tensor((64, 32), "float32"),
        P: T.Tensor((64, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(2, threads=128) as bx:
            q, k, v = (T.alloc_shared((rows, 32), "float32") for rows in (32, 64, 64))
            scores = T.alloc_fragment((32, 64), "float32")
            out = T.alloc_fragment((32, 32), "float32")
            T.copy(Q[bx * 32, 0], q)
            T.copy(Q, k)
            T.copy(V, v)
            T.clear(scores)
            T.clear(out)
            T.gemm(q, k, scores, transpose_B=True)
            after(scores, bx, lens, P)
            for i, j in T.Parallel(32, 64):
                scores[i, j] = T.exp2(scores[i, j]) if weigh is None else weigh(scores, i, j)
            T.gemm(scores, v, out)
            T.copy(out, Out[bx * 32, 0])

    return left_out(check(main, "avx512", {**SKIPS, **knobs}).explain().splitlines())


@T.macro
def replaced(scores, bx, lens, P):
    for i, j in T.Parallel(32, 64):
        scores[i, j] = T.if_then_else(j > bx * 32 + i, -INFINITY, scores[i, j] * 0.5)


@T.macro
def replaced_by_a_number(scores, bx, lens, P):
    for i, j in T.Parallel(32, 64):
        scores[i, j] = T.if_then_else(j > bx * 32 + i, -1e30, scores[i, j])


@T.macro
def read_before(scores, bx, lens, P):
    T.copy(scores, P[bx * 32, 0])
    replaced(scores, bx, lens, P)


@T.macro
def read_by_the_mask(scores, bx, lens, P):
    for i, j in T.Parallel(32, 64):
        scores[i, j] = T.if_then_else(scores[i, j] > 0, -INFINITY, scores[i, j])


@T.macro
def replaced_by_a_neighbour(scores, bx, lens, P):
    for i, j in T.Parallel(32, 64):
        scores[i, j] = T.if_then_else(j > bx * 32 + i, scores[i, j] - 1, scores[i, j])


@T.macro
def known_at_run_time(scores, bx, lens, P):
    for i, j in T.Parallel(32, 64):
        scores[i, j] = T.if_then_else(j >= lens[bx], -INFINITY, scores[i, j])


@T.macro
def either_way(scores, bx, lens, P):
    if lens[bx] > 3:
        replaced(scores, bx, lens, P)
    else:
        T.copy(scores, P[bx * 32, 0])


@T.macro
def shifted_afterwards(scores, bx, lens, P):
    replaced(scores, bx, lens, P)
    for i, j in T.Parallel(32, 64):
        scores[i, j] = scores[i, 63 - j]


@pytest.mark.parametrize(("after", "expected"), [
    (replaced, {"sums", "weights"}), (replaced_by_a_number, {"sums"}), (read_before, set()),
    (read_by_the_mask, set()), (replaced_by_a_neighbour, set()), (known_at_run_time, set()),
    (either_way, set()), (shifted_afterwards, {"sums"}),
])  # fmt: skip
def test_what_stands_between_product_and_mask(after, expected):
    assert scores_then(after) == expected


@pytest.mark.parametrize(("weigh", "is_zero"), [
    (lambda s, i, j: T.exp(2 * s[i, j] / 3 - i), True),
    (lambda s, i, j: T.exp2(s[i, j]) * 0.1, True),
    (lambda s, i, j: T.exp2(-s[i, j]), False),
    (lambda s, i, j: T.exp2(s[i, j]) + 1, False),
    (lambda s, i, j: T.exp2(1 - s[i, j]), False),
    (lambda s, i, j: T.max(s[i, j], 0.0), False),
    (lambda s, i, j: s[i, j] * 0.0, False),
])  # fmt: skip
def test_which_weights_are_zero(weigh, is_zero):
    assert ("weights" in scores_then(replaced, weigh)) == is_zero


def test_a_step_that_ends_before_its_mask_keeps_its_sums():
    @T.prim_func
    def main(Q: T.Tensor((64, 32), "float32"), P: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            q = T.alloc_shared((64, 32), "float32")
            scores = T.alloc_fragment((64, 64), "float32")
            T.copy(Q, q)
            for step in T.serial(2):
                T.gemm(q, q, scores, transpose_B=True, clear_accum=True)
                if step == 1:
                    break
                for i, j in T.Parallel(64, 64):
                    scores[i, j] = T.if_then_else(j > i, -INFINITY, scores[i, j])
            T.copy(scores, P)

    assert left_out(check(main, "avx512", SKIPS).explain().splitlines()) == set()


@pytest.mark.parametrize(("configs", "expected"), [
    ({"tl.enable_fast_math": True}, True),
    ({"tl.enable_fast_math": True, "tc.skip_masked": False}, False),
    ({"tl.enable_fast_math": True, "tl.disable_fast_math": True}, False),
    ({"tc.skip_masked": True}, True), ({}, False),
])  # fmt: skip
@pytest.mark.parametrize("target", ["h100", "avx512"])
def test_pass_configs_give_leave(target, configs, expected):
    func = attention(MASKS["later"], m=64, n=64, d=64, block=(64, 64), dtype="float16", first=True)
    notes = check(func, target, lowering_config(configs)).explain()
    assert ("no products of weights" in notes) == (expected and target == "avx512")


def test_leave_is_a_truth_value():
    with pytest.raises(InvalidConfig, match="skips_masked"):
        check(attention(MASKS["later"]), "avx512", {"skips_masked": 2})


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("queries", "keys", "causal"), [
    (192, 192, True), (70, 201, True), (192, 192, False), (64, 100, False),
])  # fmt: skip
def test_attention_of_the_library_says_so_itself(queries, keys, causal, dtype, artifacts):
    definition = kernels.get("attention")
    problem = definition.parse_problem({
        "batch": 1, "heads": 2, "kv_heads": 1, "seq_q": queries, "seq_kv": keys, "dim": 40,
        "causal": causal, "dtype": dtype,
    })  # fmt: skip
    config = {**definition.default_config(), "block_M": 64, "block_N": 64}
    artifact = compile(definition.program(problem, config), "llvm", config, artifacts)
    has_mask = causal or keys % 64 > 0
    expected = {"sums", "weights"} if has_mask else set()
    if "amx_tile" not in artifact.manifest.isa or dtype == "float32":
        assert left_out(artifact.manifest.notes) == expected
    inputs = definition.inputs(problem, np.random.default_rng(5))
    found = np.zeros((1, 2, queries, 40), DType(dtype).numpy)
    runtime.load(artifact)(*inputs, found)
    (oracle,) = definition.reference(problem, inputs)
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    assert math.isclose(np.abs(found.astype(np.float64) - oracle).max(), 0, abs_tol=tolerance)
