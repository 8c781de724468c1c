"""@autotune and AutoTuner: the fastest config that computes right, measured once."""

from __future__ import annotations

import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore.autotuner import AutoTuner, set_autotune_inputs
from tilecore.errors import TileError, TunerMissing, TuningFailed, TypeMismatch
from tilecore.tuning import installed_tuner
from workers.pool import LocalPool

CONFIGS = [{"block": 8}, {"block": 32}]


@pytest.fixture(scope="module", autouse=True)
def data_dir(tmp_path_factory):
    """One database for the tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILECORE_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield


@tilelang.autotune(configs=CONFIGS, warmup=1, rep=5)
@tilelang.jit
def doubled(A, block: int = 16):
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B = T.empty([N], T.float32)
    with T.Kernel(T.ceildiv(N, block)) as b:
        for i in T.Parallel(block):
            B[b * block + i] = A[b * block + i] * 2.0
    return B


def scaled(n: int):
    def kernel(block: int, factor: float = 2.0):
        @T.prim_func
        def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
            with T.Kernel(T.ceildiv(n, block)) as b:
                for i in T.Parallel(block):
                    Y[b * block + i] = X[b * block + i] * factor

        return main

    return kernel


def tuner(n: int, configs: list[dict[str, object]], **profile: object) -> AutoTuner:
    made = AutoTuner.from_kernel(scaled(n), configs).set_compile_args(out_idx=[-1])
    return made.set_profile_args(**profile)


@pytest.fixture
def no_workers(monkeypatch):
    """Let any attempt to measure fail."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing is to be measured")

    monkeypatch.setattr(LocalPool, "__init__", refuse)


def test_eager_call_tunes_once_per_shape() -> None:
    x = torch.randn(70)
    torch.testing.assert_close(doubled(x), x * 2)
    torch.testing.assert_close(doubled(x + 1), x * 2 + 2)
    assert len(doubled.results) == 1
    (result,) = doubled.results.values()
    assert result.config in CONFIGS
    assert result.latency > 0
    kernel = doubled(x, __return_kernel=True)
    torch.testing.assert_close(kernel(x), x * 2)


def test_a_new_shape_is_tuned_anew(monkeypatch) -> None:
    tuned = []

    def note(task):
        tuned.append(dict(task.problem))
        raise TunerMissing(group="none")

    monkeypatch.setattr("tilecore.tuning_run.installed_tuner", lambda: note)
    with pytest.raises(TunerMissing):
        doubled(torch.randn(33))
    assert tuned == [{"A": "float32", "A[0]": 33}]


def test_arguments_of_the_caller_are_not_tuned(no_workers) -> None:
    before = len(doubled.results)
    x = torch.randn(12)
    torch.testing.assert_close(doubled(x, block=4), x * 2)
    assert len(doubled.results) == before


@pytest.mark.exhaustive
def test_arguments_may_be_tuned_all_the_same() -> None:
    """What the caller gives are values to start from, as programs of libraries say it."""
    assert doubled.impl.signature.parameters["block"].default == 16
    assert doubled.impl.func.__name__ == "doubled"
    tuned = tilelang.autotune(configs=CONFIGS, do_not_specialize=["block"])(doubled.impl)
    kernel = tuned.compile(torch.randn(64), block=16)
    assert kernel.config in CONFIGS


def test_wrong_and_broken_configs_are_left_out_and_the_rest_is_remembered(monkeypatch) -> None:
    configs = [
        {"block": 8}, {"block": 16, "factor": 3.0}, {"block": "many"}, {"block": 32},
    ]  # fmt: skip
    result = tuner(40, configs, ref_prog=lambda x: x * 2).run()
    assert result.config in ({"block": 8}, {"block": 32})
    assert [c["block"] for c, _ in result.failures] == ["many", 16]
    assert "differ" in result.failures[1][1]
    assert result.ref_latency is not None
    assert not result.is_stored
    x = torch.randn(40)
    torch.testing.assert_close(result.kernel(x), x * 2)

    monkeypatch.setattr(LocalPool, "__init__", None)  # whatever would start workers fails
    again = tuner(40, configs, ref_prog=lambda x: x * 2).run()
    assert again.is_stored
    assert (again.config, again.latency) == (result.config, result.latency)
    assert [c for c, _ in again.failures] == [c for c, _ in result.failures]


def test_a_candidate_that_hangs_is_left_out() -> None:
    def kernel(step: int):
        @T.prim_func
        def main(X: T.Tensor((4,), "int32"), Y: T.Tensor((4,), "int32")):
            with T.Kernel(1):
                n = T.alloc_var("int32", init=0)
                while n != 4:
                    n = n + step - 1
                for i in T.Parallel(4):
                    Y[i] = X[i] + n

        return main

    made = AutoTuner.from_kernel(kernel, [{"step": 1}, {"step": 2}]).set_compile_args(out_idx=-1)
    made.set_profile_args(timeout=6.0, ref_prog=lambda x: x + 4)
    result = made.run()
    assert result.config == {"step": 2}
    assert "RUN_TIMEOUT" in result.failures[0][1]


@pytest.mark.exhaustive
def test_inputs_may_depend_on_the_config_and_programs_may_write_in_place() -> None:
    def kernel(parts: int):
        @T.prim_func
        def main(X: T.Tensor((8,), "float32"), P: T.Tensor((parts,), "float32")):
            with T.Kernel(1):
                for p in T.serial(parts):
                    for i in T.serial(8 // parts):
                        P[p] += X[p * (8 // parts) + i]

        return main

    def reference(x, p):
        return p + x.reshape(len(p), -1).sum(1)

    made = AutoTuner.from_kernel(kernel, [{"parts": 2}, {"parts": 4}])
    result = made.set_profile_args(ref_prog=lambda x, p: [reference(x, p)]).run()
    assert result.failures == []


@pytest.mark.exhaustive
def test_tensors_of_any_type_and_strides_reach_the_workers() -> None:
    def kernel(block: int):
        @T.prim_func
        def main(
            X: T.Tensor((64,), "float8_e4m3fn"),
            S: T.StridedTensor((8, 8), (16, 1), "float32"),
            Y: T.Tensor((64,), "float32"),
        ):
            with T.Kernel(64 // block) as b:
                for i in T.Parallel(block):
                    at = b * block + i
                    Y[at] = T.cast(X[at], "float32") + S[at // 8, at % 8]

        return main

    x = torch.arange(64).float().to(torch.float8_e4m3fn)
    s = torch.randn(8, 16)[:, :8]
    made = AutoTuner.from_kernel(kernel, [{"block": 8}]).set_compile_args(out_idx=-1)
    made.set_profile_args(ref_prog=lambda x, s: x.float() + s.flatten())
    with set_autotune_inputs(x, s):
        assert made.run().failures == []


def test_a_check_of_the_users_own_decides(no_workers, monkeypatch) -> None:
    def tune(task):
        from tilecore.tuning import TuningAnswer

        assert [c.expected for c in task.candidates] == [None, None]
        return TuningAnswer(times_s={1: 1e-6, 0: 2e-6}, failures={}, is_stored=False)

    def check(found, expected):
        assert torch.equal(found, expected), "not what was expected"

    monkeypatch.setattr("tilecore.tuning_run.installed_tuner", lambda: tune)
    configs = [{"block": 8}, {"block": 8, "factor": 3.0}]
    result = tuner(40, configs, ref_prog=lambda x: x * 2, manual_check_prog=check).run()
    assert result.config == {"block": 8}
    assert result.failures == [({"block": 8, "factor": 3.0}, "not what was expected")]


def test_unspecialized_parameters_share_a_config(monkeypatch) -> None:
    def tune(task):
        from tilecore.tuning import TuningAnswer

        tuned.append(task.problem["X[0]"])
        return TuningAnswer(times_s={0: 1e-6}, failures={}, is_stored=False)

    tuned: list[object] = []
    monkeypatch.setattr("tilecore.tuning_run.installed_tuner", lambda: tune)

    @tilelang.autotune(configs=[{"block": 8}], do_not_specialize=["n"])
    @tilelang.jit(out_idx=-1)
    def scaled_by(n, factor, block=None):
        return scaled(n)(block, factor)

    for n in (24, 40):
        x = torch.randn(n)
        torch.testing.assert_close(scaled_by(n, 2.0)(x), x * 2)
    assert tuned == [24]
    scaled_by(n=24, factor=3.0)
    assert len(tuned) == 2


def test_inputs_of_the_block_are_used(no_workers) -> None:
    seen = []

    def reference(x):
        seen.append(x)
        raise RuntimeError("enough")

    x = torch.full((40,), 3.0)
    with set_autotune_inputs([x]), pytest.raises(RuntimeError, match="enough"):
        tuner(40, [{"block": 8}], ref_prog=reference).run()
    assert seen[0] is x


def test_nothing_works() -> None:
    with pytest.raises(TuningFailed, match=r"TC503.*one of 1 configs.*WRONG_RESULT.*differ"):
        tuner(40, [{"block": 8, "factor": 3.0}], ref_prog=lambda x: x * 2).run()


def test_wrong_uses() -> None:
    with pytest.raises(TypeMismatch, match="configs="):
        tilelang.autotune(lambda: None)
    with pytest.raises(TypeMismatch, match=r"@tilelang\.jit below"):
        tilelang.autotune(configs=CONFIGS)(lambda: None)


def test_numbers_and_addresses_need_the_users_help() -> None:
    def kernel(is_pointer: bool):
        def factory(block: int):
            kind = T.ptr(T.float32) if is_pointer else T.float32

            @T.prim_func
            def main(x: kind, Y: T.Tensor((4,), "float32")):
                with T.Kernel(1):
                    for i in T.Parallel(4):
                        Y[i] = 1.0

            return main

        return factory

    for is_pointer, message in ((True, "an address"), (False, "set_autotune_inputs")):
        made = AutoTuner.from_kernel(kernel(is_pointer), [{"block": 8}])
        with pytest.raises(TypeMismatch, match=message):
            made.set_compile_args(out_idx=-1).run()


def test_without_an_installation_there_is_no_tuner(monkeypatch) -> None:
    monkeypatch.setattr("tilecore.tuning.entry_points", lambda group: [])
    with pytest.raises(TunerMissing, match=r"TC504.*tilecore\.tuner"):
        installed_tuner.__wrapped__()


@tilelang.autotune(configs=[{"block_N": n, "micro_n": 2} for n in (32, 64)], warmup=1, rep=5)
@tilelang.jit
def product(A, B, block_M: int = 32, block_N: int = 32, block_K: int = 32):
    M, N, K = T.const("M, N, K")
    A: T.Tensor[[M, K], T.float32]
    B: T.Tensor[[K, N], T.float32]
    C = T.empty([M, N], T.float32)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M)) as (bx, by):
        a = T.alloc_shared((block_M, block_K), "float32")
        b = T.alloc_shared((block_K, block_N), "float32")
        c = T.alloc_fragment((block_M, block_N), "float32")
        T.clear(c)
        for ko in T.Pipelined(T.ceildiv(K, block_K)):
            T.copy(A[by * block_M, ko * block_K], a)
            T.copy(B[ko * block_K, bx * block_N], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * block_M, bx * block_N])
    return C


@pytest.mark.exhaustive
def test_what_was_tuned_is_recommended() -> None:
    a, b = torch.randn(70, 50), torch.randn(50, 130)
    torch.testing.assert_close(product(a, b), a @ b, rtol=1e-4, atol=1e-4)
    (tuned,) = product.results.values()
    found = product.impl.recommend(a, b, top_k=3)
    assert (found[0].source, found[1].source == "measured") == ("measured", False)
    asked = {**found[0].config, **found[0].lowering}
    assert asked == {"block_M": 32, "block_K": 32, **tuned.config}
    again = product.impl(a, b, **asked)
    torch.testing.assert_close(again, a @ b, rtol=1e-4, atol=1e-4)
    near = product.impl.recommend(torch.randn(80, 50), b)[0]
    assert (near.source, near.config) == ("nearest", found[0].config)
    assert "best measured for" in near.rationale


def test_knobs_of_the_lowering_are_given_like_arguments() -> None:
    kernels = [product.impl.compile(M=64, N=64, K=64, micro_m=m) for m in (1, 4, 4)]
    assert kernels[1] is kernels[2]
    assert [k.artifact.manifest.config["micro_m"] for k in kernels] == [1, 4, 4]
    a = torch.randn(64, 64)
    torch.testing.assert_close(product.impl(a, a, micro_m=1), a @ a, rtol=1e-4, atol=1e-4)
    with pytest.raises(TileError, match="micro_m"):
        product.impl.compile(M=64, N=64, K=64, micro_m="many")
