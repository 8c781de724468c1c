"""Computations that round, that return integers and truth, and what torch makes of those."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilecore
from tests.tilecore.cuda.emulated import run_emulated
from tilecore.computing.planning.plan import Called, Launch, function_of

INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


def steps(function, *args):
    """Return a computation's results, how many kernels it has, and what torch computes of it."""
    found = tilecore.compute(function)
    results = found(*args)
    plan = found.plan(*args)
    calls = [s.node.op for s in plan.steps if isinstance(s, Called)]
    return results, sum(isinstance(s, Launch) for s in plan.steps), calls


def check(function, *args, kernels=1, calls=()):
    """Compare a computation with torch, to the bit; return what it gives."""
    got, found, called = steps(function, *args)
    want = function(*args)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert torch.equal(got, want)
    assert (found, called) == (kernels, list(calls))
    return got


def numbers(*shape):
    """Return random numbers, some of them whole and some amid two whole ones."""
    return torch.cat([torch.randn(shape) * 20, (torch.randn(shape) * 8).round() / 2])


def quantized(x):
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().clamp(-128, 127).to(torch.int8)


@pytest.mark.parametrize("shape", [(3, 7), (5, 64), (2, 1000)])
@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round", "sign", "frac"])
def test_what_rounds_is_as_in_torch(name, shape):
    x = numbers(*shape)
    x[0, :3] = torch.tensor([0.0, -0.0, 3e9])
    check(getattr(torch, name), x)


@pytest.mark.parametrize("decimals", [-1, 0, 2])
def test_numbers_are_rounded_to_some_decimals(decimals):
    check(lambda x: torch.round(x, decimals=decimals), numbers(5, 33))


def test_functions_of_numpy_round_as_well():
    x = numbers(5, 33).numpy()
    for function in (np.rint, np.floor, np.ceil, np.trunc):
        assert np.array_equal(tilecore.compute(function)(x), function(x))
    assert np.array_equal(
        tilecore.compute(lambda x: np.rint(x).astype(np.int8))(x), np.rint(x).astype(np.int8)
    )


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("shape", [(3, 7), (4, 64)])
def test_integers_are_results(dtype, shape):
    x = numbers(*shape).abs().clamp(max=127)
    check(lambda x: x.to(dtype), x)
    check(lambda x: (x.softmax(-1) > 0.1).to(dtype), x)
    check(lambda x: x.amax(-1).to(dtype), x)


def test_methods_that_name_types_of_integers():
    x = numbers(4, 33).clamp(0, 127)
    for name in ("char", "byte", "short", "int", "long"):
        check(lambda x, name=name: getattr(x * 0.5, name)(), x)


def test_numbers_of_16_bits_become_integers():
    for dtype in (torch.float16, torch.bfloat16):
        check(lambda x: x.to(torch.int32), numbers(4, 33).to(dtype))


def test_what_does_not_fit_keeps_its_low_bits():
    x = torch.tensor([[300.0, -300.0, 129.0, -129.0, 65536.0, 7.9, -7.9, 1e9]])
    check(lambda x: x.to(torch.int8), x)
    check(lambda x: x.to(torch.int16), x)


@pytest.mark.parametrize("shape", [(3, 7), (33, 768), (2, 1001)])
def test_rows_are_quantized_by_one_kernel(shape):
    x = torch.randn(shape)
    got, kernels, calls = steps(quantized, x)
    want = quantized(x)
    assert (kernels, calls, got.dtype) == (1, [], torch.int8)
    apart = (got.int() - want.int()).abs()
    assert apart.max() <= 1  # a quotient amid two integers
    assert apart.float().mean() < 1e-3


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_rows_become_floats_of_8_bits(dtype):
    def scaled(x):
        return (x / (x.abs().amax(-1, keepdim=True) / torch.finfo(dtype).max)).to(dtype)

    x = torch.cat([numbers(5, 96), torch.randn(3, 96) * 1e-4])
    got, kernels, calls = steps(scaled, x)
    assert (kernels, calls, got.dtype) == (1, [], dtype)
    assert (got.float() == scaled(x).float()).float().mean() > 0.999
    x[0, :3] = torch.tensor([float("nan"), float("inf"), -1e9])
    for function in (lambda x: x.to(dtype), lambda x: x.to(dtype).float() * 2):
        got, kernels, calls = steps(function, x)
        assert (kernels, calls) == (1, [])
        assert torch.equal(got.float().nan_to_num(1e6), function(x).float().nan_to_num(1e6))


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.float8_e4m3fn, torch.float8_e5m2])
def test_narrow_tensors_are_converted_where_they_are_read(dtype):
    x = (torch.randn(6, 40) * 40).abs().clamp(max=127).to(dtype)
    check(lambda x: x.float() * 0.5, x)
    check(lambda x: x.to(torch.bfloat16), x)
    check(lambda x, y: y + x.type_as(y), x, torch.randn(6, 40))
    check(lambda x: x[:, 1::2].half() + 1, x)
    check(lambda x: x.t().float(), x)


def test_large_integers_are_rounded_and_converted_to_others_by_torch():
    x = torch.randint(-(2**40), 2**40, (5, 33))
    check(lambda x: x.float(), x)
    check(lambda x: x.to(torch.int32), x, kernels=0, calls=["to"])
    check(lambda x: x.to(torch.int32).float(), x, calls=["to"])
    check(lambda x: x.double(), x, kernels=0, calls=["double"])


def test_conversions_that_no_kernel_has_are_those_of_torch():
    x = numbers(5, 33)
    check(lambda x: x.to(torch.bool), x, kernels=0, calls=["to"])
    check(lambda x: x.type(torch.complex64), x, kernels=0, calls=["type"])
    check(lambda x: x.type_as(x > 0), x, calls=["type_as"])
    check(lambda x: (x + 1).to(memory_format=torch.contiguous_format), x)


def test_quantized_weights_are_read_by_a_product():
    x, w = torch.randn(5, 64), torch.randint(-127, 128, (64, 48), dtype=torch.int8)
    scale = torch.rand(48) / 100
    got, _, calls = steps(lambda x, w, scale: x @ (w.float() * scale), x, w, scale)
    assert calls == []
    assert torch.allclose(got, x @ (w.float() * scale), atol=1e-4)


def test_quantized_numbers_are_numbers_again_in_one_kernel():
    x, scale = numbers(5, 64), 0.25
    check(lambda x: (x / scale).round().clamp(-128, 127).to(torch.int8).float() * scale, x)
    check(lambda x: x.to(torch.uint8).to(torch.int32).to(torch.bfloat16), x.abs())


def test_torch_computes_with_integers_and_truth():
    """As it did with those that are passed, which were refused."""
    x = numbers(5, 33)
    check(lambda x: x.int() + 1, x, calls=["add"])
    check(lambda x: x.to(torch.int16) - x.to(torch.int16), x, calls=["sub"])
    check(lambda x: x.long().amax(-1), x, calls=["amax"])
    check(lambda x: x.int() > 2**24, x, calls=["gt"])
    check(lambda x: x.int().sum(-1), x, calls=["sum"])
    check(lambda x: (x > 0) + 1, x, calls=["add"])
    check(lambda x: torch.where(x > 1, 1, 0).sum(), x, calls=["sum"])
    check(lambda x: F.relu(torch.where(x > 1, 1, -1)), x, calls=["relu"])
    check(lambda x: torch.cat([x.char(), x.char()]), x, calls=["cat"])
    check(lambda x, t: t[x.abs().long()], x.clamp(-9, 9), torch.randn(10), calls=["__getitem__"])


def test_comparisons_are_results():
    x, y = numbers(5, 33), numbers(5, 33)
    check(lambda x, y: x > y, x, y)
    check(lambda x, y: (x > y) & (x < 3), x, y)
    check(lambda x, y: ~(x.amax(-1, keepdim=True) > y), x, y)


def test_integers_keep_probabilities_from_attention():
    """Casts between softmax and product are left out, but not those that cut."""
    q, k, v = (torch.randn(1, 2, 16, 32) for _ in range(3))

    def coarse(q, k, v):
        weights = (q @ k.transpose(-1, -2)).softmax(-1)
        return (weights * 8).to(torch.int8).float() @ v

    got, _, _ = steps(coarse, q, k, v)
    assert torch.allclose(got, coarse(q, k, v), atol=1e-4)


def test_integers_of_sizes_that_vary():
    found = tilecore.compute(quantized)
    for rows in (3, 8, 21, 40):
        x = torch.randn(rows, 96)
        assert (found(x).int() - quantized(x).int()).abs().max() <= 1


@pytest.mark.parametrize("target", ["h100", "a100"])
def test_rows_are_quantized_on_a_gpu(target):
    x = torch.randn(6, 96)
    found = tilecore.compute(quantized)
    found(x)
    (stage,) = found.plan(x).stages
    program = stage.program
    func = function_of(program.name, program.text, target, __name__).program(block_M=2, threads=128)
    out = np.zeros((6, 96), np.int8)
    run_emulated(func, target, [x.numpy(), out])
    assert np.abs(out.astype(int) - quantized(x).numpy().astype(int)).max() <= 1
