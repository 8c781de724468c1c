"""Computations on GPUs of rows that registers cannot hold: they walk over the columns."""

import pytest
import torch
import torch.nn.functional as F

import tilecore
from tests.tilecore.test_computing import wide
from tilecore.computing.programs import long_rows

R = torch.randn


def divergence(x, y):
    return (x.softmax(-1) * (x.log_softmax(-1) - y.log_softmax(-1))).sum(-1)


def standardised(x):
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True, correction=1)


CASES = {
    "log softmax": (lambda x: x.log_softmax(-1), (R(6, 777),)),
    "scores": (lambda x, m: (x * 0.3 + m).softmax(-1), (R(2, 5, 777).half(), R(777).half())),
    "layer norm": (
        lambda x, w: F.layer_norm(x, x.shape[-1:], w) + x.amin(-1, keepdim=True),
        (R(5, 900), R(900)),
    ),
    "values per row": (lambda x: x.logsumexp(-1) - x.mean(-1), (R(7, 1001),)),
    "divergence": (divergence, (R(5, 500), R(5, 500))),
    "standardised": (standardised, (R(3, 4, 513),)),
    "turned": (lambda x: x.softmax(-1), (R(500, 30).T,)),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("target", ["emulated h200", "emulated a100", "emulated mi300x"])
@pytest.mark.parametrize("name", CASES)
def test_walks_over_the_columns(name, target, monkeypatch):
    function, args = CASES[name]
    monkeypatch.setattr(long_rows, "HELD", 0)
    found = tilecore.compute(function, target=target)
    exact = function(*map(wide, args))
    error = (found(*args).double() - exact).abs().max() / exact.abs().max()
    assert error <= (1e-3 if args[0].dtype == torch.float16 else 1e-6)
    assert any("for c in T.serial(" in text for text in found.programs(*args))


@pytest.mark.parametrize(
    "function", [lambda x: x.amax(-1), lambda x: x.amin(-1), lambda x: x.softmax(-1)]
)
def test_nan_and_infinity_go_on_as_in_torch(function, monkeypatch):
    monkeypatch.setattr(long_rows, "HELD", 0)
    x = R(4, 777)
    x[1, 5], x[2, 3], x[3] = float("nan"), float("inf"), float("-inf")
    found = tilecore.compute(function, target="emulated h200")(x)
    torch.testing.assert_close(found, function(x), equal_nan=True)


def test_rows_of_a_vocabulary_stay_out_of_local_memory():
    plan = tilecore.compute(lambda x: x.log_softmax(-1), target="h200").plan(R(64, 32000))
    (stage,) = plan.stages
    assert "for c in T.serial(" in stage.program.text
    assert stage.kernel.artifact.manifest.resources["spill_bytes"] == 0
    assert "T.serial" not in tilecore.compute(torch.exp).programs(R(64, 32000))[0]


@pytest.mark.parametrize("columns", [4096, 16384])
def test_rows_that_registers_hold_are_read_once(columns):
    found = tilecore.compute(lambda x: x.softmax(-1), target="h200")
    assert "T.serial" not in found.programs(R(64, columns))[0]


def test_what_becomes_of_an_argument_per_row_is_written_when_nothing_reads_it_any_more():
    def function(top, *given):
        x = sum(given)
        found = torch.maximum(top, x.amax(-1, keepdim=True))
        y = (x - top).exp()
        top.copy_(found)
        return y

    given, top = [torch.randn(2, 8000) / 3 for _ in range(5)], torch.full((2, 1), 0.5)
    mine, wanted = top.clone(), top.clone()
    computation = tilecore.compute(function, target="emulated h200")
    torch.testing.assert_close(computation(mine, *given), function(wanted, *given))
    torch.testing.assert_close(mine, wanted)
    (stage,) = computation.plan(mine, *given).stages
    assert "for c in T.serial" in stage.program.text  # too many numbers for registers
    assert stage.program.overwritten
