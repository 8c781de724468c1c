"""The text of a program at many sizes is what is printed of it with these sizes in place."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilecore.language as T
from tilecore import kernels
from tilecore.ir.dims import dimensions
from tilecore.ir.expr import Var
from tilecore.ir.nodes import Assert, Seq
from tilecore.ir.open_text import OpenText
from tilecore.ir.printer import format_func
from tilecore.ir.substitute import substitute
from tilecore.kernels.definition import extent

SIZE = st.one_of(st.integers(1, 40), st.integers(1, 5000), st.sampled_from((64, 128, 1024)))
SMALL = {"kernel": 3, "stride": 2, "dilation": 1, "padding": 1, "group": 32}


def opened(program, names, rest):
    symbols = {name: Var(name) for name in names}
    func = program({**rest, **symbols}, {})
    return func, OpenText.of(func, frozenset(dimensions(func)))


@pytest.mark.few(12)
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("name", sorted(kernels.KERNELS))
@settings(deadline=None, max_examples=4)
@given(data=st.data())
def test_library_kernels_read_as_if_printed_at_their_sizes(data, name, kind):
    definition = kernels.get(name).on(kind)
    config = dict(definition.default_config())
    fields = [f.name for f in definition.fields if f.kind == "dimension"]
    flags = {f.name: data.draw(st.booleans()) for f in definition.fields if f.kind == "flag"}
    given_sizes = {**dict.fromkeys(fields, 96), **{k: v for k, v in SMALL.items() if k in fields}}
    problem = definition.parse_problem({**given_sizes, **flags})
    names = [name for name in fields if name not in definition.numbers(problem)]
    func, text = opened(lambda p, _: definition.program(p, config), names, problem)
    assert text is not None
    for _ in range(3):
        sizes = {v: data.draw(SIZE) for v in dimensions(func)}
        assert text.at(sizes) == format_func(substitute(func, sizes))
    assert sum(isinstance(line, str) for line in text.lines) >= len(text.lines) // 4


def odd(problem, _):
    """Names that repeat, one of them a size's; regions that are whole at some sizes only."""
    m, n = extent(problem, "m"), extent(problem, "n")

    @T.prim_func
    def odd(A: T.Tensor((m, n), "float32"), B: T.Tensor((m, n), "float32")):
        with T.Kernel(1, threads=32) as _:
            tile = T.alloc_shared((64, 64), "float32")
            T.copy(A[0:64, 0:64], tile)
            for i in T.serial(m // 64):
                for m_ in T.serial(2):
                    tile[i, m_] = tile[i, m_] + T.float32(1)
            for i in T.serial(64):
                for j in T.Parallel(64):
                    tile[i, j] = tile[i, j] * T.if_then_else(i < n - 64, T.float32(2), T.float32(3))
            T.copy(tile, B[0:64, 0:64])

    return odd


@pytest.mark.parametrize("sizes", [(64, 64), (64, 65), (128, 64), (1, 1), (5000, 1), (640, 64)])
def test_numbers_behind_names_and_whole_regions_follow_the_sizes(sizes):
    func, text = opened(odd, ("m", "n"), {})
    assert text is not None
    by_name = dict(zip(("m", "n"), sizes, strict=True))
    values = {v: by_name[v.name] for v in dimensions(func)}
    found = text.at(values)
    assert found == format_func(substitute(func, values))
    assert ("copy A -> tile" in found) == (sizes == (64, 64))
    assert "for i_1 in" in found


def test_a_program_that_names_something_before_it_is_bound_has_no_such_text():
    """Its number would come from a mention that may be gone at some sizes."""
    func, _ = opened(odd, ("m", "n"), {})
    stray = Var("i")
    body = Seq((Assert(stray < 3, "a variable that nothing binds"), func.body))
    assert OpenText.of(replace(func, body=body), frozenset(dimensions(func))) is None
