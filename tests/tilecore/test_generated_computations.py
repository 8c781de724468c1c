"""Random computations: compiled code gives what torch does, as exactly as rounding lets it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilecore
from tests.tilecore.computation_generator import Drawn, computations
from tests.tilecore.exact_generator import exact_computations, exact_numpy_computations


def check(drawn: Drawn, dynamic: bool | None = None) -> None:
    names = {"torch": torch, "F": F}
    exec(drawn.source, names)
    function = names["computation"]
    traced = _listed(function(*(x.to("meta") for x in drawn.inputs)))
    found = _listed(tilecore.compute(function, dynamic=dynamic)(*drawn.inputs))
    for got, like, want in zip(found, traced, drawn.results, strict=True):
        assert (got.shape, got.dtype) == (like.shape, like.dtype)
        excess = (got.double() - want.exact).abs() - want.error
        assert float(excess.max()) <= 0, (got, want.exact)


def _listed(results: torch.Tensor | tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


@settings(max_examples=10)
@given(drawn=computations())
def test_computations_agree_with_torch(drawn: Drawn) -> None:
    check(drawn)


@pytest.mark.exhaustive
@settings(max_examples=80)
@given(drawn=computations())
def test_more_computations_agree_with_torch(drawn: Drawn) -> None:
    check(drawn)


@settings(max_examples=5)
@given(drawn=computations())
def test_kernels_of_symbols_agree_with_torch(drawn: Drawn) -> None:
    check(drawn, dynamic=True)


@pytest.mark.exhaustive
@settings(max_examples=80)
@given(drawn=computations())
def test_more_kernels_of_symbols_agree_with_torch(drawn: Drawn) -> None:
    check(drawn, dynamic=True)


def check_exactly(drawn: Drawn, dynamic: bool | None, tmp_path) -> None:
    file = tmp_path / "computation.py"
    file.write_text(drawn.source)
    names = {"torch": torch, "np": np}
    exec(compile(drawn.source, file, "exec"), names)
    function = names["function"]
    computation = tilecore.compute(function, dynamic=dynamic)
    for _ in range(2):
        for got, want in zip(computation(*drawn.inputs), function(*drawn.inputs), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype), drawn
            assert bool((got == want).all()), drawn


OF_SYMBOLS = st.sampled_from([None, True])
FIXTURES = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=25, suppress_health_check=FIXTURES)
@given(drawn=exact_computations(), dynamic=OF_SYMBOLS)
def test_computations_of_small_integers_are_exact(drawn, dynamic, tmp_path) -> None:
    check_exactly(drawn, dynamic, tmp_path)


@pytest.mark.exhaustive
@settings(max_examples=300, suppress_health_check=FIXTURES)
@given(drawn=exact_computations(), dynamic=OF_SYMBOLS)
def test_more_computations_of_small_integers_are_exact(drawn, dynamic, tmp_path) -> None:
    check_exactly(drawn, dynamic, tmp_path)


@settings(max_examples=25, suppress_health_check=FIXTURES)
@given(drawn=exact_numpy_computations())
def test_computations_of_numpys_integers_are_exact(drawn, tmp_path) -> None:
    with np.errstate(all="ignore"):
        check_exactly(drawn, None, tmp_path)


@pytest.mark.exhaustive
@settings(max_examples=300, suppress_health_check=FIXTURES)
@given(drawn=exact_numpy_computations())
def test_more_computations_of_numpys_integers_are_exact(drawn, tmp_path) -> None:
    with np.errstate(all="ignore"):
        check_exactly(drawn, None, tmp_path)
