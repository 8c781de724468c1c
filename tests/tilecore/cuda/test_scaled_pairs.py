"""Elements times factors by two blocks of a cluster together (tcgen05, cta_group::2, sm_100a)."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.tilecore.cuda.emulated import bound, lowered
from tests.tilecore.cuda.scaled_programs import E2M1, E4M3, E5M2, E8M0, in_pairs
from tests.tilecore.cuda.test_tensor_scaled import check, close, inputs
from tilecore.codegen.nvrtc import compile_cuda, load_nvrtc
from tilecore.codegen.order_proof import ENOUGH, order_programs
from tilecore.emulator import ALL_SCHEDULES, emulate
from tilecore.errors import EmulationError, UnknownPrimitive, UnsupportedOnTarget
from tilecore.interpreter import run
from tilecore.ordering import check as check_order
from tilecore.ordering import without
from tilecore.ordering.check import acts

pytestmark = pytest.mark.few(1)  # a case takes long

needs_nvrtc = pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")
SMALL = ((256, 128, 512), (128, 128, 128))


@pytest.mark.parametrize(
    ("size", "block", "count", "kind", "options"),
    [
        ((256, 256, 512), (128, 256, 128), 128, E4M3, {}),  # TileLang's: a word for four tiles
        ((400, 200, 256), (128, 128, 128), 32, E5M2, {"turned": True}),  # ragged, four blocks
        ((256, 256, 256), (128, 256, 256), 32, E4M3, {}),  # two words along K
        ((256, 128, 256), (128, 128, 128), 16, E2M1, {"factors": E4M3}),  # NVFP4
        ((256, 128, 256), (128, 128, 128), 32, E2M1, {}),  # MXFP4
    ],
)
def test_two_blocks_multiply_by_their_factors(size, block, count, kind, options):
    func = in_pairs(size, block, count, kind, **options)
    turned, factors = options.get("turned", False), options.get("factors", E8M0)
    given = inputs(size, (count, count), (kind, kind), factors, turned=turned)
    launch, found = check(func, *given)
    assert (found.kind, found.shape[:2]) == ("tcgen05", (256, block[1]))
    assert "one thread for two blocks" in launch.explain()
    text = lowered(func, "b200")[2].text
    assert "tcgen05.cp.cta_group::2.32x128b.warpx4" in text
    assert re.search(r"tcgen05\.mma\.cta_group::2\.kind::mx\w+\.block_scale", text)
    assert "cta_group::1" not in text


@needs_nvrtc
@pytest.mark.parametrize("target", ["b200", "sm_103"])
def test_the_code_compiles(target):
    _, _, source = lowered(in_pairs((512, 512, 512), (128, 256, 128)), target, is_ordered=False)
    assert compile_cuda(source.text, source.arch).data


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda: in_pairs(*SMALL, count=48), "for 48 elements each"),
        (lambda: in_pairs(*SMALL, rows=64), "64 rows are no multiple of 128"),
        (lambda: in_pairs((256, 512, 128), (128, 512, 64), 32), "512 columns"),
    ],
)
def test_what_two_blocks_cannot_multiply_is_refused(program, reason):
    """Plain statements in place of the product would know of one block alone."""
    with pytest.raises(
        UnsupportedOnTarget, match=r"tcgen05_gemm_blockscaled\(use_2cta=True\)"
    ) as e:
        lowered(program(), "b200", is_ordered=False)
    assert reason in str(e.value)


def test_others_have_no_two_blocks():
    func = in_pairs(*SMALL)
    for target in ("h100", "rtx5090"):
        with pytest.raises(UnsupportedOnTarget, match="no tensor memory on sm_"):
            lowered(func, target, is_ordered=False)
    given, a, b = inputs(SMALL[0], (128, 128))
    with pytest.raises(UnknownPrimitive, match=r"tcgen05_\w+\(use_2cta=True\)"):
        run(func, *given, np.zeros((len(a), len(b)), np.float32))


# Text of the kernel -> what stands in its place, and what the emulator says ("wrong": other sums).
BUGS = {
    "to other columns": (r"tc_tensor_copy_pair\(\(t", "tc_tensor_copy_pair((2 + t", "a multiple"),
    "no wait for the words": (r"tc_barrier_wait_cluster\(.*6530\)\]\)\), .*\);", ";", "race"),
    "no fence behind the words": (r"tc_fence_async_cluster\(\);", ";", "fence"),
    "the byte of another factor": (r"(i\d+), (i\d+), condval\)", r"\1, \2 ^ 1, condval)", "wrong"),
    "a block copies alone": (r"emu::tensor_copy\(d, s, true\)", "emu::tensor_copy(d, s, false)",
                             "in a kernel that has instructions of cta_group::2"),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_caught(name):
    pattern, other, message = BUGS[name]
    func = in_pairs(*SMALL)
    given, a, b = inputs(SMALL[0], (128, 128))
    _, program, source = lowered(func, "b200")
    text, count = re.subn(pattern, other, source.emulated)
    assert count
    c = np.full(SMALL[0][:2], 77, np.float32)
    values, reached = bound(func, program, [*given, c])

    def seeded():
        emulate(replace(source, emulated=text), values, ALL_SCHEDULES, known=reached)
        if not close(c, a, b):
            raise EmulationError(kernel="main", what="wrong")

    with pytest.raises(EmulationError, match=message):
        seeded()


def test_the_proof_of_order_knows_both_blocks():
    (kernel,) = order_programs(lowered(in_pairs(*SMALL), "b200", is_ordered=False)[1])
    assert not check_order(kernel, ENOUGH)
    inside = acts(kernel, inside_loops=True)
    missed = {kernel.sites[a.site].text for a in inside if check_order(without(kernel, a), ENOUGH)}
    assert missed >= {"barrier_wait_cluster", "barrier_arrive_remote", "fence_async_cluster"}
