"""Problems of the library's kernels: whatever is accepted makes a well-formed program."""

import itertools

import pytest

from tilecore import kernels
from tilecore.errors import InvalidProblem
from tilecore.ir.verifier import verify


@pytest.mark.few(1)
@pytest.mark.parametrize("name", sorted(kernels.KERNELS))
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_accepted_element_types_make_a_program(name, kind):
    """float32 with sums in int32 was accepted, recommended for, and failed in every trial."""
    kernel = kernels.get(name)
    sizes = {f.name: f.default or 32 for f in kernel.fields if f.kind == "dimension"}
    types = [f for f in kernel.fields if f.kind == "dtype"]
    own, made = kernel.on(kind), 0
    for combination in itertools.product(*(f.choices for f in types)):
        given = dict(zip((f.name for f in types), combination, strict=True))
        try:
            problem = kernel.parse_problem(sizes | given)
        except InvalidProblem:
            continue
        verify(own.program(problem, {k.name: k.default for k in own.knobs}))
        made += 1
    assert made >= len(types[0].choices)


def test_sums_are_of_the_kind_of_the_elements():
    gemm = kernels.get("gemm")
    sizes = {"m": 8, "n": 8, "k": 8}
    for dtype, sums in (("int8", "int32"), ("uint8", "int32"), ("float16", "float32")):
        assert gemm.parse_problem(sizes | {"dtype": dtype})["accum_dtype"] == sums
    for dtype, sums, expected in (
        ("int8", "float32", "one of int32"), ("float32", "int32", "one of float32, float64"),
    ):  # fmt: skip
        with pytest.raises(InvalidProblem) as caught:
            gemm.parse_problem(sizes | {"dtype": dtype, "accum_dtype": sums})
        assert (caught.value.fields["field"], caught.value.fields["expected"]) == (
            "accum_dtype", expected,
        )  # fmt: skip


def test_fields_go_by_their_names_and_aliases_in_letters_of_any_size():
    gemm = kernels.get("gemm")
    sizes = {"m": 8, "n": 16, "k": 32}
    expected = gemm.parse_problem(sizes)
    assert gemm.parse_problem({name.upper(): size for name, size in sizes.items()}) == expected
    for field in gemm.fields:
        for alias in field.aliases:
            spelled = {**expected, alias.title(): expected[field.name]}
            del spelled[field.name]
            assert gemm.parse_problem(spelled) == expected
    with pytest.raises(InvalidProblem, match="two spellings"):
        gemm.parse_problem({**sizes, "M": 9})
    with pytest.raises(InvalidProblem, match=r"unknown field.*") as caught:
        gemm.parse_problem({**sizes, "dtpye": "float32"})
    assert caught.value.hint == "did you mean `dtype`?"
