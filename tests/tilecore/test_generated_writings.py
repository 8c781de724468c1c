"""Random functions of views and writes: results are torch's own, or refused as not known."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

import tilecore
from tests.tilecore.writing_generator import NAMES, Writing, writings
from tilecore.errors import UnsupportedSyntax

REFUSED = ("whether they share memory", "what expand repeats", "only writes elements of a tensor")


def check(drawn: Writing) -> None:
    names = dict(NAMES)
    exec(drawn.source, names)
    try:
        found = tilecore.compute(names["function"])(*drawn.inputs)
    except UnsupportedSyntax as error:
        if not any(text in str(error) for text in REFUSED):
            raise
        return
    for got, wanted in zip(found, drawn.results, strict=True):
        assert torch.equal(got, wanted), (got, wanted)
    assert all(map(torch.equal, drawn.inputs, drawn.after))


@settings(max_examples=12)
@given(drawn=writings())
def test_every_name_sees_what_torch_writes(drawn: Writing) -> None:
    check(drawn)


@pytest.mark.exhaustive
@settings(max_examples=300)
@given(drawn=writings())
def test_more_names_see_what_torch_writes(drawn: Writing) -> None:
    check(drawn)


@settings(max_examples=12)
@given(drawn=writings(writes_arguments=True))
def test_arguments_are_what_torch_makes_of_them(drawn: Writing) -> None:
    check(drawn)


@pytest.mark.exhaustive
@settings(max_examples=300)
@given(drawn=writings(writes_arguments=True))
def test_more_arguments_are_what_torch_makes_of_them(drawn: Writing) -> None:
    check(drawn)
