"""Bugs seeded in pipelined products: the emulator must catch every one."""

import numpy as np
import pytest

from tests.tilecore.cuda.programs import gemm_sm80, gemm_sm90
from tilecore.codegen.cuda import generate
from tilecore.emulator import ALL_SCHEDULES, LATE, TensorMap, build
from tilecore.errors import EmulationError
from tilecore.target import parse_target

SM80 = {
    "no wait": "race: thread .* reads .* cp.async",
    "late wait": "race: thread .* reads .* cp.async",
    "no barrier": "race",
    "fetch before barrier": "race: cp.async .* writes",
    "divergent barrier": "race|deadlock",
    "swizzle": "wrong result|race",
    "not transposed": "wrong result",
    "misaligned": "misaligned address, expected a multiple of 16",
    "global bounds": "global memory out of bounds, byte .* of `B`",
    "shared bounds": "shared memory at byte|race",
    "no commit": "race|not committed",
    "left in flight": "still in flight when the thread exits",
}
SM90 = {
    "expects too much": "deadlock:(.|\n)*mbarrier at byte",
    "inverted parity": "deadlock:(.|\n)*mbarrier at byte",
    "producer does not wait": "more arrivals than the barrier expects",
    "consumer does not wait": "race: wgmma .* reads .* a TMA load",
    "early release": "race: wgmma .* reads .* a TMA load",
    "no wgmma fence": "wgmma without wgmma.fence",
    "touches accumulator": "accumulator of a wgmma changes while it is in flight",
    "no final wait": "still in flight|wrong result",
    "no proxy fence": "missing fence.proxy.async: a bulk store",
    "no store barrier": "race: a bulk store .* reads",
    "no store wait": "bulk_wait is missing",
    "no init fence": "barrier was initialised without a fence",
    "no init barrier": "initialises the barrier, and no other barrier is between",
}


def _inputs(m, n, k):
    rng = np.random.default_rng(5)
    a = rng.standard_normal((m, k)).astype(np.float16)
    b = rng.standard_normal((k, n)).astype(np.float16)
    return a, b, a.astype(np.float64) @ b.astype(np.float64)


def _run(kernels, schedules, arguments, c, expected):
    for schedule in schedules:
        c[...] = np.nan
        kernels.run(arguments, schedule)
        if not np.abs(c - expected).max() <= 0.03:
            raise EmulationError(kernel="test", what="wrong result")


def run_sm80(change, schedules):
    m, n, k = 64, 128, 160
    kernels = build(generate(gemm_sm80(m, n, k, change=change), parse_target("sm_80")))
    a, b, expected = _inputs(m, n, k)
    c = np.empty((m, n), np.float16)
    _run(kernels, schedules, {"A": a, "B": b, "C": c}, c, expected)


def run_sm90(change, schedules):
    m, n, k = 128, 128, 256
    kernels = build(generate(gemm_sm90(m, n, k, change=change), parse_target("h100")))
    a, b, expected = _inputs(m, n, k)
    c = np.empty((m, n), np.float16)
    maps = {
        "A_map": TensorMap(a, (128, 64), 128),
        "B_map": TensorMap(b, (64, 64), 128),
        "C_map": TensorMap(c, (128, 64)),
    }
    _run(kernels, schedules, maps, c, expected)


def test_the_product_for_sm80_is_right_under_every_schedule():
    run_sm80("", ALL_SCHEDULES)


def test_the_product_for_sm90_is_right_under_every_schedule():
    run_sm90("", ALL_SCHEDULES)


@pytest.mark.few(1)
@pytest.mark.parametrize("change", SM80)
def test_a_bug_in_the_product_for_sm80_is_caught(change):
    with pytest.raises(EmulationError, match=SM80[change]):
        run_sm80(change, (LATE,))


@pytest.mark.few(1)
@pytest.mark.parametrize("change", SM90)
def test_a_bug_in_the_product_for_sm90_is_caught(change):
    with pytest.raises(EmulationError, match=SM90[change]):
        run_sm90(change, (LATE,))
