"""References with torch on a device, and comparisons where the tensors lie."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from recommender.workload import Workload
from tilecore import kernels
from workers.device_problem import DeviceProblem, GuardedTensor, compare, to_torch

ATTENTION = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_q": 24, "seq_kv": 40, "dim": 16}
CASES = [
    ("gemm", {"m": 33, "n": 20, "k": 17, "dtype": "float16"}),
    ("gemm", {"m": 33, "n": 20, "k": 17, "dtype": "bfloat16", "transpose_b": True}),
    ("gemm", {"m": 9, "n": 20, "k": 40, "dtype": "int8", "out_dtype": "int32",
              "accum_dtype": "int32", "transpose_a": True}),
    ("attention", {**ATTENTION, "dtype": "bfloat16"}),
    ("attention", {**ATTENTION, "dtype": "float32", "causal": True}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "problem"), CASES)
@pytest.mark.parametrize("block", [1 << 26, 64])
def test_references_of_torch_are_those_of_numpy(name, problem, block, monkeypatch):
    monkeypatch.setattr("tilecore.kernels.on_device.BLOCK_ELEMENTS", block)
    definition = kernels.get(name)
    parsed = definition.parse_problem(problem)
    given = list(definition.inputs(parsed, np.random.default_rng(1)))
    expected = definition.reference(parsed, given)
    found = definition.on_device.reference(parsed, [to_torch(x, "cpu") for x in given])
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float64
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-12, atol=1e-12)
    made = definition.on_device.inputs(parsed, torch.Generator().manual_seed(3))
    assert [(x.shape, x.dtype) for x in made] == [
        (to_torch(x, "cpu").shape, to_torch(x, "cpu").dtype) for x in given
    ]


def test_every_kernel_has_a_problem_on_a_device():
    problems = {
        "softmax": {"m": 3, "n": 40}, "layer_norm": {"m": 3, "n": 40},
        "dequant_gemm": {"m": 5, "n": 64, "k": 128}, "split_k_gemm": {"m": 4, "n": 8, "k": 300},
    }  # fmt: skip
    for name, problem in problems.items():
        definition = kernels.get(name)
        parsed = definition.parse_problem(problem)
        made = DeviceProblem.fresh(
            Workload.of(name, parsed), definition, device="cpu", load=lambda path: None,
            synchronize=lambda: None,
        )  # fmt: skip

        def right(made=made):
            for out, wanted in zip(made.outputs, made.expected, strict=True):
                out.tensor.copy_(wanted)

        assert made.check(right).passed, name
        assert not made.check(lambda: None).passed, name


@pytest.fixture
def problem():
    parsed = kernels.get("gemm").parse_problem({"m": 8, "n": 6, "k": 4})
    return DeviceProblem.fresh(
        Workload.of("gemm", parsed), kernels.get("gemm"), device="cpu",
        load=lambda path: None, synchronize=lambda: None,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["gemm", "conv2d"])
def test_inputs_of_float32_have_the_bits_that_tensor_cores_read(name):
    fields = {"m": 8, "n": 6, "k": 4}
    if name == "conv2d":
        fields = {"batch": 1, "height": 4, "width": 4, "channels": 4, "filters": 4, "kernel": 3}
    definition = kernels.get(name)
    parsed = definition.parse_problem(fields)
    made = DeviceProblem.fresh(
        Workload.of(name, parsed), definition, device="cpu", load=lambda path: None,
        synchronize=lambda: None,
    )  # fmt: skip
    floats = [x for x in made.inputs if x.dtype == torch.float32]
    assert floats
    assert all(not (x.view(torch.int32) & 0x1FFF).any() and x.std() > 0.1 for x in floats)


@pytest.mark.exhaustive
def test_sums_of_float8_may_be_cut_as_tensor_cores_cut_them():
    """What does not fit into 13 bits behind the largest of 32 terms and the sum is cut off."""
    definition = kernels.get("scaled_gemm")
    parsed = definition.parse_problem(
        {"m": 48, "n": 40, "k": 4096, "dtype": "float8_e4m3fn", "out_dtype": "bfloat16",
         "transpose_b": True}
    )  # fmt: skip
    made = DeviceProblem.fresh(
        Workload.of("scaled_gemm", parsed), definition, device="cpu", load=lambda path: None,
        synchronize=lambda: None,
    )  # fmt: skip
    a, b, scale_a, scale_b, _ = (x.double() for x in made.inputs)

    def kernel(first):
        total = torch.zeros(48, 40, dtype=torch.float64)
        for k in range(first, 4096, 32):
            terms = a[:, None, k : k + 32] * b[None, :, k : k + 32]
            largest = torch.maximum(terms.abs().amax(-1), total.abs())
            unit = torch.exp2(torch.floor(torch.log2(largest)) - 13)
            total = (
                torch.trunc(total / unit) * unit
                + (torch.trunc(terms / unit[..., None])).sum(-1) * unit
            )
        made.outputs[0].tensor.copy_(total * scale_a[:, None] * scale_b)

    assert made.check(lambda: kernel(0)).passed
    assert not made.check(lambda: kernel(32)).passed


def test_everything_that_a_kernel_may_have_touched_is_looked_at(problem):
    out, wanted = problem.outputs[0], problem.expected[0]

    def writes_an_input():
        out.tensor.copy_(wanted)
        problem.inputs[1][0, 0] += 1

    report = problem.check(writes_an_input)
    assert "input 1 was written to" in report.detail
    assert f"seed {problem.seed}" in report.detail
    assert problem.check(lambda: out.tensor.copy_(wanted)).passed  # the input is as it was

    def writes_beyond():
        out.tensor.copy_(wanted)
        out.memory[-1] = 0

    assert "beyond its ends" in problem.check(writes_beyond).detail
    assert problem.rival()() is not None


def test_the_report_names_the_worst_element_in_any_chunk(monkeypatch):
    monkeypatch.setattr("workers.device_problem.CHUNK", 5)
    expected = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    found = expected.to(torch.float32)
    assert compare(found, expected, 1e-6, 1e-3, "output 0").passed
    found[1, 2] += 0.25
    found[2, 3] += 0.5
    report = compare(found, expected, 0.0, 1e-3, "output 0")
    assert report.detail == (
        "output 0[2, 3]: expected 11 within 0.001, found 11.5; 2 of 12 elements wrong"
    )
    assert report.max_error == pytest.approx(500)
    found[0, 1] = math.nan
    report = compare(found, expected, 0.0, 1e-3, "output 0")
    assert "output 0[0, 1]" in report.detail
    assert "1 never written or NaN" in report.detail
    assert report.max_error == math.inf


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32"])
def test_outputs_are_poisoned(dtype):
    out = GuardedTensor.allocate((3, 5), dtype, "cpu")
    out.poison()
    assert out.is_intact
    values = out.tensor.double()
    assert values.isnan().all() if "float" in dtype else (values == -(2.0**31)).all()
    out.memory[0] = 1
    assert not out.is_intact
