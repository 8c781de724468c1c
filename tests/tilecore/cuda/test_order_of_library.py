"""The order of the library's programs on GPUs is proven, and what in their loops it could spare."""

import pytest

from tests.tilecore.cuda import test_library_on_gpus as variants
from tests.tilecore.cuda import test_tile_programs as common
from tests.tilecore.cuda.emulated import lowered
from tilecore.codegen.order_proof import ENOUGH, order_programs
from tilecore.kernels import KERNELS, get
from tilecore.ordering import Verdict, judge

TARGETS = ("sm_80", "h100")


def _of_variant(number):
    name, fields, config = variants.CASES[number]
    definition = get(name).on("cuda")
    problem = definition.parse_problem(fields)
    return definition.program(problem, dict(definition.default_config("cuda")) | config)


def _of_kernel(name):
    definition = KERNELS[name]
    known = {f.name for f in definition.fields}
    given = {k: v for k, v in common.PROBLEMS[name].items() if k in known}
    given |= {k: "bfloat16" for k in ("dtype", "out_dtype") if k in known}
    knobs = {k.name: k.default for k in definition.knobs} | common.KNOBS.get(name, {})
    return definition.program(definition.parse_problem(given), knobs)


PROGRAMS = {
    **{f"{c[0]} {n}": (_of_variant, n) for n, c in enumerate(variants.CASES)},
    **{name: (_of_kernel, name) for name in common.PROBLEMS},
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_access_is_ordered_and_every_wait_ends(name, target):
    make, of = PROGRAMS[name]
    program = lowered(make(of), target, is_ordered=False)[1]
    for is_last in (True, False):
        for kernel in order_programs(program, is_last=is_last):
            assert judge(kernel, ENOUGH) == Verdict((), ())
