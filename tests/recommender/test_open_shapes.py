"""One trace for all shapes says what a trace of each shape says, or is not used."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recommender.analytic import estimate
from recommender.errors import EmptySpace
from recommender.features import features
from recommender.hardware import load_profile
from recommender.open_shapes import traced
from recommender.space import SearchSpace, space_of
from tilecore import kernels
from tilecore.graph import build
from tilecore.kernels.definition import extent, knob_symbols

HOST = load_profile("x86-64-avx512")
AMX = replace(HOST, features=(*HOST.features, "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"))
DEVICES = (HOST, AMX, load_profile("h100"), load_profile("mi300x"))
LEGAL = {  # sizes that others have to go with
    "heads": st.sampled_from((8, 32)), "kv_heads": st.sampled_from((1, 2, 8)),
    "dim": st.sampled_from((32, 64, 128)), "seq_q": st.integers(1, 300),
    "seq_kv": st.integers(300, 5000), "group": st.sampled_from((8, 64, 128, 256)),
    "experts": st.sampled_from((1, 8, 100)), "kernel": st.sampled_from((1, 3)),
    "stride": st.integers(1, 2), "dilation": st.integers(1, 2), "padding": st.integers(2, 3),
}  # fmt: skip
SIZE = st.one_of(st.integers(1, 40), st.integers(1, 5000), st.sampled_from((64, 1024, 4096)))


def problem_of(data, kernel):
    """Return a problem of a kernel of the library."""
    sizes = [f.name for f in kernel.fields if f.kind == "dimension"]
    given_sizes = {size: data.draw(LEGAL.get(size, SIZE)) for size in sizes}
    dtypes = next(f for f in kernel.fields if f.name == "dtype").choices
    dtype = data.draw(st.sampled_from([d for d in dtypes if d in ("float32", "bfloat16", "int8")]))
    flags = {f.name: data.draw(st.booleans()) for f in kernel.fields if f.kind == "flag"}
    return kernel.parse_problem({**given_sizes, **flags, "dtype": dtype})


@pytest.mark.few(4)
@pytest.mark.parametrize("name", sorted(kernels.KERNELS))
@settings(deadline=None, max_examples=6)
@given(data=st.data(), hardware=st.sampled_from(DEVICES))
def test_spaces_and_estimates_are_those_of_a_trace_of_the_shape(data, name, hardware):
    kernel = kernels.get(name)
    problem = problem_of(data, kernel)
    sizes = [f.name for f in kernel.fields if f.kind == "dimension"]
    definition = kernel.on(hardware.kind)
    graph = build(definition.program(problem, knob_symbols(definition)))
    try:
        closed = space_of(definition, problem, hardware, graph)
    except EmptySpace as error:
        with pytest.raises(EmptySpace, match=re.escape(error.message)):
            SearchSpace.build(definition, problem, hardware)
        return
    opened = SearchSpace.build(definition, problem, hardware)
    symbols = set(sizes) - set(definition.numbers(problem))
    assert opened.sizes == {size: problem[size] for size in symbols} != {}
    assert closed.sizes == {}
    np.testing.assert_array_equal(opened.codes, closed.codes)
    threads = data.draw(st.integers(1, 64))
    found, wanted = (estimate(s, threads=threads) for s in (opened, closed))
    np.testing.assert_allclose(found.time_s, wanted.time_s, rtol=1e-12)
    row = data.draw(st.integers(0, len(opened) - 1))
    assert found.at(row).explain() == wanted.at(row).explain()
    default = definition.default_config(hardware.kind)
    assert opened.explain(default) == closed.explain(default)
    assert opened.can_run([default]) == closed.can_run([default])
    columns = opened.table([opened.config(row), default])
    rows = [features(s, columns, estimate(s, columns)) for s in (opened, closed)]
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-5)


def test_one_trace_serves_all_shapes():
    definition = kernels.get("gemm")
    shapes = [
        traced(definition, definition.parse_problem({"m": m, "n": 64, "k": 64})) for m in (8, 9)
    ]
    assert shapes[0].graph is shapes[1].graph
    assert [s.sizes["m"] for s in shapes] == [8, 9]


@pytest.mark.parametrize(("stride", "symbols"), [
    (1, {"filters"}), (2, {"batch", "height", "width", "filters"}),
])  # fmt: skip
@pytest.mark.parametrize("width", [56, 9])  # that patches fill, and do not
def test_sizes_that_choose_a_patch_are_numbers(width, stride, symbols):
    definition = kernels.get("conv2d").on("cuda")
    sizes = {"batch": 2, "height": 56, "width": width, "channels": 64, "filters": 96, "padding": 1}
    problem = definition.parse_problem({**sizes, "stride": stride, "dtype": "float16"})
    assert set(traced(definition, problem).sizes) == symbols


def branching(problem, knobs):
    """GEMM, as long as M is small."""
    small = extent(problem, "m") < 500
    return kernels.get("gemm").program({**problem, "transpose_b": bool(small)}, knobs)


def counting(problem, knobs):
    """What no symbol can take part in."""
    return kernels.get("gemm").program({**problem, "k": int(problem["k"])}, knobs)


def rounding(problem, knobs):
    """A program that differs from its symbolic self for sizes that 100 does not divide."""
    m = extent(problem, "m")
    m = m if not isinstance(m, int) or m % 100 == 0 else m + 4
    return kernels.get("gemm").program({**problem, "m": m}, knobs)


@pytest.mark.parametrize("program", [branching, counting, rounding])
def test_programs_that_need_numbers_are_traced_for_each_shape(program):
    gemm = kernels.get("gemm")
    definition = replace(gemm, name=f"gemm {program.__name__}", program=program)
    problem = gemm.parse_problem({"m": 640, "n": 64, "k": 64})
    found = traced(definition, problem)
    assert found.sizes == {}
    assert found.site is not None
