"""Elements times factors in tensor memory by one instruction (sm_100a), against float64.

MXFP8, MXFP4 and NVFP4: ``tcgen05.mma`` with ``.block_scale``, factors copied by ``tcgen05.cp``.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.tilecore.cuda.emulated import bound, lowered, run_emulated
from tests.tilecore.cuda.scaled_programs import (
    E2M1,
    E4M3,
    E5M2,
    E8M0,
    by_all,
    in_roles,
    of_any_size,
    operand,
)
from tests.tilecore.cuda.test_scaled_products import CHUNKS, operands, product
from tilecore.codegen.cubin import read_features
from tilecore.codegen.nvrtc import compile_cuda, load_nvrtc
from tilecore.codegen.order_proof import ENOUGH, order_programs
from tilecore.emulator import ALL_SCHEDULES, EARLY, LATE, emulate
from tilecore.errors import EmulationError
from tilecore.gpu_compiler import passes_for
from tilecore.inference.gpu.options import GpuOptions
from tilecore.inference.gpu.products.tensor_products import only_product
from tilecore.interpreter import run
from tilecore.ir.nodes import NOTE, Annotate
from tilecore.ir.plain.scaled_gemm import has_factors
from tilecore.ir.visitor import walk
from tilecore.ordering import check as check_order
from tilecore.ordering import without
from tilecore.ordering.check import acts
from tilecore.passes.pipeline import run_passes
from tilecore.target import parse_target

needs_nvrtc = pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")
SMALL = ((128, 128, 512), (128, 128, 128))


def inputs(size, count, kinds=(E4M3, E4M3), factors=E8M0, *, turned=False, flat=True):
    """Return (arguments but for C, A times its factors, B times its factors)."""
    rng, (M, N, K) = np.random.default_rng(0), size
    a, b = (
        operand(rng, rows, K, each, kind, factors)
        for rows, each, kind in zip((M, N), count, kinds, strict=True)
    )
    words = [side[1].ravel() if flat else side[1] for side in (a, b)]
    return [a[0], np.ascontiguousarray(b[0].T) if turned else b[0], *words], a[2], b[2]


def close(c, a, b):
    """Return whether sums are those of float64, each instruction's rounded once."""
    bound = np.abs(a) @ np.abs(b).T
    return bool((np.abs(c - a @ b.T) <= 2.0**-23 * (a.shape[1] // 32 + 1) * bound).all())


def check(func, given, a, b, schedules=ALL_SCHEDULES):
    """Run a program on the emulator and compare; return the plans of its launch and product."""
    c = np.full((len(a), len(b)), 77, np.float32)
    plan = run_emulated(func, "b200", [*given, c], schedules)
    assert close(c, a, b)
    (launch,) = plan.launches.values()
    (found,) = launch.gemms.values()
    assert not any("bfloat16" in note for note in launch.notes)
    return launch, found


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("size", "block", "count", "kinds", "turned"),
    [
        ((128, 128, 1024), (128, 128, 128), (128, 128), (E4M3, E4M3), False),  # a word, 4 tiles
        ((200, 136, 256), (128, 128, 128), (32, 32), (E4M3, E5M2), False),  # ragged, a word each
        ((128, 256, 512), (128, 256, 256), (32, 128), (E5M2, E5M2), False),  # two words of A
        ((256, 128, 256), (256, 128, 64), (64, 32), (E4M3, E4M3), True),  # B contiguous along N
        ((128, 384, 128), (128, 384, 64), (32, 32), (E5M2, E4M3), False),  # three of 128 columns
    ],
)
def test_programs_with_roles(size, block, count, kinds, turned):
    """Loads, factors and products by a warp each, as TileLang's example for sm_100 has them."""
    func = in_roles(size, block, count, kinds, turned=turned)
    launch, found = check(func, *inputs(size, count, kinds, turned=turned))
    assert (found.kind, found.is_async, found.shape[2]) == ("tcgen05", True, 32)
    assert f"of {kinds[0]} with factors (.block_scale)" in launch.explain()
    assert "copied to tensor memory by the unit of products: sfa, sfb\n" in launch.explain()
    factors = [t for t in launch.tensor_tiles.values() if t.of_factors]
    assert [t.column % 4 for t in factors] == [0, 0]
    first = min(t.column for t in factors)  # behind the sums
    assert first == block[0] // 128 * block[1]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("block", "count", "factors", "form"),
    [
        ((128, 128, 128), 32, E8M0, "mxf4.block_scale.scale_vec::2X"),
        ((128, 256, 256), 32, E8M0, "mxf4.block_scale.scale_vec::2X"),  # two words
        ((128, 128, 256), 16, E4M3, "mxf4nvf4.block_scale.scale_vec::4X"),  # four
    ],
)
def test_elements_of_four_bits(block, count, factors, form):
    size = (block[0], block[1], 2 * block[2])
    func = in_roles(size, block, (count, count), (E2M1, E2M1), factors=factors)
    _, found = check(func, *inputs(size, (count, count), (E2M1, E2M1), factors))
    assert (found.shape[2], found.size[2]) == (32, block[2] // 2)  # bytes, of two elements each
    assert f"kind::{form} [%0]" in lowered(func, "b200")[2].text


@pytest.mark.few(1)
@pytest.mark.parametrize("mbar", [True, False])
def test_all_threads_copy_factors(mbar):
    """What threads write is fenced for the unit, which has read it when the product is complete."""
    func = by_all(mbar=mbar)
    _, found = check(func, *inputs((128, 128, 256), (32, 32), flat=False))
    assert (found.kind, found.is_async) == ("tcgen05", mbar)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("size", "block", "threads", "layout", "options"),
    [
        ((200, 136, 512), (128, 128, 256), 128, CHUNKS, {}),  # NVFP4, ragged
        ((256, 64, 256), (256, 64, 128), 256, "rowmajor", {}),  # 64 columns: half a chunk
        ((128, 256, 256), (128, 256, 256), 128, CHUNKS, {}),  # 2 x 4 chunks of B
        ((128, 192, 256), (128, 192, 128), 128, None, {"share": 32, "factors": E8M0}),  # MXFP4
        ((128, 128, 256), (128, 128, 128), 128, CHUNKS,
         {"share": 32, "factors": E8M0, "kind": (E4M3, E5M2)}),  # MXFP8
        ((256, 32, 192), (256, 32, 96), 128, "rowmajor",
         {"share": 32, "factors": E8M0, "kind": E5M2}),  # the last word has three factors
    ],
)  # fmt: skip
def test_factors_in_shared_memory(size, block, threads, layout, options):
    """T.mma_gemm_blockscaled: chunks are copied as they lie, other words are put into chunks."""
    func = product(size, block, layout, threads, **options)
    given, a, b = operands(np.random.default_rng(0), size, block, layout, **options)
    launch, found = check(func, given, a, b)
    assert (found.kind, found.a.source, found.b.source) == ("tcgen05", *2 * ["descriptor"])
    (pipeline,) = launch.pipelines.values()
    assert len(pipeline.copies) == 4
    assert any(b.name.endswith("chunks") for b in launch.shared) == (layout != CHUNKS)
    if not options and layout == CHUNKS:  # rows of words that boxes bring: one thread runs it all
        assert only_product(pipeline, launch.gemms) is not None


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["b200", "rtx5090"])
def test_rows_of_elements_of_four_bits_of_any_length(target):
    """Of tensors of bytes no axis is K any more, and the program was refused for that (TC104)."""
    func, block = of_any_size(), (128, 128, 256)
    for size in ((256, 128, 512), (200, 136, 256)):
        given, a, b = operands(np.random.default_rng(0), size, block, CHUNKS)
        c = np.full(size[:2], 77, np.float32)
        plan = run_emulated(func, target, [*given, c])
        assert ".block_scale" in plan.explain()
        assert close(c, a, b)


def test_the_interpreter_agrees():
    """The words lie where every other target reads them."""
    for count, kinds, factors in ((64, (E4M3, E5M2), E8M0), (16, (E2M1, E2M1), E4M3)):
        size, block = (128, 128, 256), (128, 128, 64 if count == 64 else 128)
        func = in_roles(size, block, (count, count), kinds, factors=factors)
        given, a, b = inputs(size, (count, count), kinds, factors)
        c = np.zeros(size[:2], np.float32)
        run(func, *given, c)
        assert (np.abs(c - a @ b.T) <= 2.0**-23 * size[2] * (np.abs(a) @ np.abs(b).T)).all()


# --- what does not permit it --------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda: by_all(count=16), "factors of float8_e8m0fnu for 16 elements each"),
        (lambda: by_all(column=2), "do not begin with a multiple of 4 columns"),
        (lambda: by_all(start=lambda k: k * 128 + k // 2), "k_start is no multiple of 32"),
        (lambda: by_all(copies=False), "elements are accessed one by one"),
        (lambda: by_all(mbar=False, seldom=True), "no product follows at once"),
        (lambda: by_all(kind=E2M1, count=64), "x float4_e2m1fn with factors of float8_e8m0fnu"),
        (lambda: by_all(sums="float16"), "no tcgen05.mma with factors sums up in float16"),
        (lambda: product((64, 64, 128), (64, 64, 128)), "64 rows are no multiple of 128"),
        (lambda: product((128, 24, 128), (128, 24, 128)), "24 columns are no multiple of 16"),
        (lambda: product((128, 512, 64), (128, 512, 64), "rowmajor", 256), "of tensor memory"),
        (lambda: product((128, 128, 96), (128, 128, 96), share=32, factors=E8M0),
         "K = 96 is no multiple of 64"),
        (lambda: product((128, 128, 128), (128, 128, 128), more=("elsewhere",)),
         "the sums are not a whole fragment"),
    ],
)  # fmt: skip
def test_other_products_multiply_in_bfloat16(program, reason):
    plan, _, source = lowered(program(), "b200", is_ordered=False)
    assert re.search(f"elements times factors in bfloat16: .*{re.escape(reason)}", plan.explain())
    assert "block_scale" not in source.text
    assert "tcgen05.cp" not in source.text


def test_what_is_refused_is_still_right():
    func = by_all(column=2)
    given, a, b = inputs((128, 128, 256), (32, 32), flat=False)
    c = np.full((128, 128), 77, np.float32)
    run_emulated(func, "b200", [*given, c])
    np.testing.assert_allclose(c, a @ b.T, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("target", ["h100", "sm_80", "rtx5090", "mi300x"])
def test_other_targets_have_no_tensor_memory(target):
    device = parse_target(target)
    passed = run_passes(in_roles(*SMALL), None, passes_for(device, GpuOptions())[:1])
    assert not any(has_factors(s) for s in walk(passed.body))
    told = [s.value for s in walk(passed.body) if isinstance(s, Annotate) and s.key == NOTE]
    reason = "elements times factors in bfloat16: no tensor memory on sm_120a"
    assert told == ([reason] if target == "rtx5090" else [])


# --- seeded bugs --------------------------------------------------------------------------------

# Text of the kernel -> what stands in its place; None: an error of the emulator that says so.
BUGS = {
    "the byte of another factor": (r"(i\d+), (i\d+), condval\)", r"\1, \2 ^ 1, condval)", None),
    "factors of A for B": (r"(tc_tensor_mma_scaled\w+\(.*), (\(t\d+ \+ \(uint\)128\)), (\(t\d+ \+ "
                           r"\(uint\)132\))", r"\1, \2, \2", None),
    "copied to other columns": (r"tc_tensor_copy\(\(t\d+ \+ \(uint\)132\)",
                                r"tc_tensor_copy((t6 + (uint)130)", "a multiple of 4"),
    "to columns of nobody": (r"tc_tensor_copy\(\(t\d+ \+ \(uint\)132\)",
                             r"tc_tensor_copy((t6 + (uint)300)", "is not allocated"),
    "a copy left out": (r"tc_tensor_copy\(\(t\d+ \+ \(uint\)132\), t\d+\);", ";", None),
    "no wait for the words": (r"tc_barrier_wait\(.*857[89]\)\]\)\), .*\);", ";", "race"),
    "no fence behind the words": (r"tc_fence_async\(\);", ";", "fence"),
    "no wait for the tiles": (r"tc_barrier_wait\(.*8576\)\]\)\), .*\);", ";", "race"),
    "no wait for free tiles": (r"tc_barrier_wait\(.*8580\)\]\)\), .*\);", ";", "more arrivals"),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_caught(name):
    pattern, other, message = BUGS[name]
    func = in_roles(*SMALL)
    given, a, b = inputs(SMALL[0], (128, 128))
    _, program, source = lowered(func, "b200")
    text, count = re.subn(pattern, other, source.emulated)
    assert count
    c = np.full((128, 128), 77, np.float32)
    values, reached = bound(func, program, [*given, c])
    seeded = replace(source, emulated=text)
    if message is not None:
        with pytest.raises(EmulationError, match=message):
            emulate(seeded, values, ALL_SCHEDULES, known=reached)
        return
    emulate(seeded, values, (LATE,), known=reached)
    assert not close(c, a, b)


@pytest.mark.few(1)
def test_the_proof_of_order_knows_copies_and_factors():
    """Whatever orders in the loops is missed, but for waits of what others have waited for."""
    (kernel,) = order_programs(lowered(in_roles(*SMALL), "b200", is_ordered=False)[1])
    assert not check_order(kernel, ENOUGH)
    inside = acts(kernel, inside_loops=True)
    missed = {kernel.sites[a.site].text for a in inside if check_order(without(kernel, a), ENOUGH)}
    assert missed >= {"barrier_wait", "barrier_expect_only", "barrier_arrive", "fence_async"}


# --- machine code -------------------------------------------------------------------------------


@needs_nvrtc
@pytest.mark.parametrize("target", ["b200", "sm_103"])
@pytest.mark.parametrize(
    ("options", "form", "count"),
    [
        ({}, "mxf4nvf4.block_scale.scale_vec::4X", 4),  # 256 of K by 64
        ({"share": 32, "factors": E8M0}, "mxf4.block_scale.scale_vec::2X", 4),
        ({"share": 32, "factors": E8M0, "kind": E4M3}, "mxf8f6f4.block_scale.scale_vec::1X", 8),
    ],
)
def test_the_machine_code(options, form, count, target):
    """As nvdisasm 13.5 calls them: UTCOMMA of 4-bit elements, UTCQMMA of others, UTCCP."""
    func = product((512, 512, 4096), (128, 128, 256), CHUNKS, **options)
    _, _, source = lowered(func, target, is_ordered=False)
    assert f"kind::{form}" in source.text
    cubin = compile_cuda(source.text, source.arch)
    (found,) = read_features(cubin.data, source.arch).values()
    words = 256 // (4 * options.get("share", 16))
    assert found.opcodes["UTCMMA"] % count == 0
    assert found.opcodes["UTCCP"] * count == found.opcodes["UTCMMA"] * 2 * words
    assert (found.local_accesses, cubin.spills) == (0, 0)


def test_early_and_late_units_give_the_same():
    given = inputs(SMALL[0], (128, 128))[0]
    func, found = in_roles(*SMALL), []
    for schedule in (EARLY, LATE):
        c = np.full((128, 128), 77, np.float32)
        run_emulated(func, "b200", [*given, c], (schedule,))
        found.append(c)
    np.testing.assert_array_equal(*found)
