"""The order of the library's programs on GPUs is proven, and what in their loops it could spare."""

import functools

import pytest

from tests.tilecore.cuda import test_library_on_gpus as variants
from tests.tilecore.cuda import test_tile_programs as common
from tests.tilecore.cuda.emulated import lowered
from tilecore.codegen.order_proof import ENOUGH, order_programs
from tilecore.kernels import KERNELS, get
from tilecore.ordering import Verdict, judge, unneeded

TARGETS = ("sm_80", "h100")
LONGER = {"dequant_gemm": {"k": 400}, "grouped_gemm": {"m": 600}}  # more than one turn of each loop


def _of_variant(number):
    name, fields, config = variants.CASES[number]
    definition = get(name).on("cuda")
    problem = definition.parse_problem(fields)
    return definition.program(problem, dict(definition.default_config("cuda")) | config)


def _of_kernel(name):
    definition = KERNELS[name]
    known = {f.name for f in definition.fields}
    sizes = common.PROBLEMS[name] | LONGER.get(name, {})
    given = {k: "bfloat16" for k in ("dtype", "out_dtype") if k in known}
    given |= {k: v for k, v in sizes.items() if k in known}
    knobs = {k.name: k.default for k in definition.knobs} | common.KNOBS.get(name, {})
    return definition.program(definition.parse_problem(given), knobs)


PROGRAMS = {
    **{f"{c[0]} {n}": (_of_variant, n) for n, c in enumerate(variants.CASES)},
    **{name: (_of_kernel, name) for name in common.PROBLEMS},
}
CASES = [
    pytest.param(name, marks=[pytest.mark.exhaustive] if of in variants.REPEATED else [])
    for name, (_, of) in PROGRAMS.items()
]


@functools.cache
def tir_of(name, target):
    """Return a program's TIR, which both tests read."""
    make, of = PROGRAMS[name]
    return lowered(make(of), target, is_ordered=False)[1]


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_every_access_is_ordered_and_every_wait_ends(name, target):
    program = tir_of(name, target)
    for is_last in (True, False):
        for kernel in order_programs(program, is_last=is_last):
            assert judge(kernel, ENOUGH) == Verdict((), ())


# In loops, what the proof can do without, by program and target. A warp whose lanes have read a
# tile meets, and tells units of it by a fence, before it frees it; whoever fills it waits until
# another tile is free as well, which comes later. Of a product of one warpgroup the proof takes for
# known in all of its warps that it has read its operand once one of them has waited. A fold across
# warps meets once more when it is done, so that others may use the memory that it took.
FREES, TELLS, READ = "sync_warp", "fence_async", "bar_sync"
FOLDS = "sync_threads"
SPARE = {
    ("dequant_gemm 4", "h100"): {FREES, TELLS},
    ("dequant_gemm 7", "h100"): {FREES, TELLS},
    ("decode_attention 9", "h100"): {FREES, TELLS},
    ("decode_attention 10", "h100"): {READ},
    ("attention_backward 11", "h100"): {FREES, TELLS},
    ("attention_backward 12", "h100"): {FREES, TELLS},
    ("conv2d", "h100"): {READ},
    ("conv2d 17", "h100"): {READ},
    ("conv2d 18", "h100"): {READ},
    ("decode_attention", "sm_80"): {FOLDS},
    ("decode_attention", "h100"): {FOLDS},
}


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_loops_hold_no_barrier_or_fence_in_vain(name, target):
    spare = {s.text for k in order_programs(tir_of(name, target)) for s in unneeded(k, ENOUGH)}
    assert spare == SPARE.get((name, target), set())
