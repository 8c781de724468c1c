"""Every kernel of the library on memory as callers have it: unaligned, guarded, shared."""

import threading

import numpy as np
import pytest

from tilecore import kernels, runtime
from tilecore.compiler import compile
from tilecore.errors import AliasError
from tilecore.runtime import num_threads, set_num_threads
from workers.correctness import compare, tolerance

HEADS = {"batch": 1, "heads": 4, "kv_heads": 2, "seq_q": 35, "seq_kv": 70, "dim": 24}
PROBLEMS = {
    "gemm": {"m": 45, "n": 70, "k": 33},
    "gemm_epilogue": {"m": 45, "n": 70, "k": 33},
    "batched_gemm": {"batch": 3, "m": 45, "n": 70, "k": 33},
    "split_k_gemm": {"m": 5, "n": 20, "k": 300},
    "scaled_gemm": {"m": 45, "n": 70, "k": 33, "bias": True},
    "dequant_gemm": {"m": 5, "n": 64, "k": 256, "dtype": "float32", "out_dtype": "float32"},
    "grouped_gemm": {"experts": 3, "m": 40, "n": 33, "k": 20},
    "conv2d": {"batch": 1, "height": 9, "width": 11, "channels": 5, "filters": 19, "padding": 1},
    "attention": HEADS,
    "attention_backward": HEADS,
    "decode_attention": {**HEADS, "seq_q": 1},
    "linear_attention": {"batch": 1, "heads": 2, "seq_len": 100, "dim": 24, "dim_v": 20},
    "softmax": {"m": 9, "n": 100},
    "rms_norm": {"m": 9, "n": 100},
    "layer_norm": {"m": 9, "n": 100},
    "elementwise": {"m": 9, "n": 100},
    "reduction": {"m": 9, "n": 100},
}
GUARD, MARGIN = 0xA5, 64


def shifted(array):
    """Return a copy at an address that only its elements are aligned to, and its margins."""
    memory = np.full(array.nbytes + 3 * MARGIN, GUARD, np.uint8)
    start = -memory.ctypes.data % MARGIN + array.itemsize
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    outside = np.concatenate([memory[:start], memory[start + array.nbytes :]])
    assert copy.ctypes.data % MARGIN == array.itemsize
    assert (outside == GUARD).all()
    return copy, lambda: np.concatenate([memory[:start], memory[start + array.nbytes :]])


def built(name, artifacts):
    definition = kernels.get(name)
    problem = definition.parse_problem(PROBLEMS[name])
    program = definition.program(problem, dict(definition.default_config()))
    return definition, problem, runtime.load(compile(program, store=artifacts))


def test_every_kernel_is_here():
    assert set(PROBLEMS) == set(kernels.KERNELS)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", PROBLEMS)
def test_unaligned_tensors(name, artifacts):
    definition, problem, kernel = built(name, artifacts)
    inputs = definition.inputs(problem, np.random.default_rng(0))
    expected = definition.reference(problem, inputs)
    outputs = [np.full(e.shape, np.nan, np.float32) for e in expected]
    placed = [shifted(a) for a in (*inputs, *outputs)]
    kernel(*(array for array, _ in placed))
    rtol, atol = tolerance("float32", "float32", definition.reduction_length(problem))
    for (found, _), want in zip(placed[len(inputs) :], expected, strict=True):
        report = compare(found, want, rtol, atol)
        assert report.passed, report.detail
    for (array, _), given in zip(placed, inputs, strict=False):
        np.testing.assert_array_equal(array, given)
    assert all((margins() == GUARD).all() for _, margins in placed)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", PROBLEMS)
def test_an_output_that_overlaps_an_input_is_refused(name, artifacts):
    definition, problem, kernel = built(name, artifacts)
    inputs = list(definition.inputs(problem, np.random.default_rng(0)))
    shapes = [e.shape for e in definition.reference(problem, inputs)]
    outputs = [np.zeros(shape, np.float32) for shape in shapes]
    size = max(inputs[0].nbytes, outputs[0].nbytes)
    memory = np.zeros(size, np.uint8)
    before = memory[: inputs[0].nbytes].view(inputs[0].dtype).reshape(inputs[0].shape)
    before[...] = inputs[0]
    inputs[0] = before
    outputs[0] = memory[size - outputs[0].nbytes :].view(np.float32).reshape(outputs[0].shape)
    with pytest.raises(AliasError, match="share memory"):
        kernel(*inputs, *outputs)


def test_torch_and_our_threads_take_turns(artifacts):
    torch = pytest.importorskip("torch")
    definition, problem, kernel = built("gemm", artifacts)
    a, b = (torch.from_numpy(x) for x in definition.inputs(problem, np.random.default_rng(0)))
    expected = a.double() @ b.double()
    before, found = num_threads(), torch.empty(45, 70)
    set_num_threads(2)
    try:
        for _ in range(50):
            found.fill_(float("nan"))
            kernel(a, b, found)
            torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close((a @ b).double(), expected, rtol=1e-4, atol=1e-4)
    finally:
        set_num_threads(before)


def test_calls_from_several_threads_of_python(artifacts):
    definition, problem, kernel = built("attention", artifacts)
    wrong: list[int] = []

    def run(seed):
        inputs = definition.inputs(problem, np.random.default_rng(seed))
        (expected,) = definition.reference(problem, inputs)
        found = np.empty(expected.shape, np.float32)
        for _ in range(20):
            kernel(*inputs, found)
            if not np.allclose(found, expected, rtol=1e-4, atol=1e-4):
                wrong.append(seed)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
