"""@autotune and AutoTuner: the fastest config that computes right."""

from __future__ import annotations

import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore.autotuner import AutoTuner, set_autotune_inputs
from tilecore.errors import TuningFailed, TypeMismatch

CONFIGS = [{"block": 8}, {"block": 32}]


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


def test_eager_call_tunes_once_per_shape() -> None:
    x = torch.randn(70)
    torch.testing.assert_close(doubled(x), x * 2)
    torch.testing.assert_close(doubled(x + 1), x * 2 + 2)
    assert len(doubled.results) == 1
    (result,) = doubled.results.values()
    assert result.config in CONFIGS
    assert result.latency > 0
    doubled(torch.randn(33))
    assert len(doubled.results) == 2


def test_arguments_of_the_caller_are_not_tuned() -> None:
    before = len(doubled.results)
    x = torch.randn(12)
    torch.testing.assert_close(doubled(x, block=4), x * 2)
    assert len(doubled.results) == before


def test_arguments_may_be_tuned_all_the_same() -> None:
    """What the caller gives are values to start from, as programs of libraries say it."""
    assert doubled.impl.signature.parameters["block"].default == 16
    assert doubled.impl.func.__name__ == "doubled"
    tuned = tilelang.autotune(configs=CONFIGS, warmup=1, rep=5, do_not_specialize=["block"])(
        doubled.impl
    )
    kernel = tuned.compile(torch.randn(64), block=16)
    assert kernel.config in CONFIGS


def test_lazy_tuner_leaves_out_wrong_and_broken_configs() -> None:
    configs = [
        {"block": 8}, {"block": 16, "factor": 3.0}, {"block": "many"}, {"block": 32},
    ]  # fmt: skip
    tuner = AutoTuner.from_kernel(scaled(40), configs).set_compile_args(out_idx=[-1])
    result = tuner.set_profile_args(ref_prog=lambda x: x * 2).run(warmup=1, rep=5)
    assert result.config in ({"block": 8}, {"block": 32})
    assert [c["block"] for c, _ in result.failures] == [16, "many"]
    assert "differ" in result.failures[0][1]
    assert result.ref_latency is not None
    x = torch.randn(40)
    torch.testing.assert_close(result.kernel(x), x * 2)


def test_inputs_of_the_block_are_used() -> None:
    seen = []

    def reference(x):
        seen.append(x)
        return x * 2

    x = torch.full((40,), 3.0)
    tuner = AutoTuner.from_kernel(scaled(40), [{"block": 8}]).set_compile_args(out_idx=-1)
    with set_autotune_inputs([x]):
        tuner.set_profile_args(ref_prog=reference).run(warmup=1, rep=2)
    assert seen[0] is x


def test_nothing_works() -> None:
    tuner = AutoTuner.from_kernel(scaled(40), [{"block": 8, "factor": 3.0}])
    tuner.set_compile_args(out_idx=-1).set_profile_args(ref_prog=lambda x: x * 2)
    with pytest.raises(TuningFailed, match=r"TC503.*one of 1 configs.*differ"):
        tuner.run()


def test_wrong_uses() -> None:
    with pytest.raises(TypeMismatch, match="configs="):
        tilelang.autotune(lambda: None)
    with pytest.raises(TypeMismatch, match=r"@tilelang\.jit below"):
        tilelang.autotune(configs=CONFIGS)(lambda: None)
