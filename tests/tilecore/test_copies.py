"""Kernels, functions and computations in models that are copied, saved, or sent to processes."""

import copy
import io
import pickle
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import pytest
import torch

import tilecore
import tilecore.language as T
from tests.recommender import user_programs as programs

A, B = torch.randn(24, 16), torch.randn(16, 8)


@tilecore.jit
def product(A, B, block_M=32, block_N=32, block_K=16):
    M, N, K = T.const("M, N, K")
    A: T.Tensor[[M, K], T.float32]
    B: T.Tensor[[K, N], T.float32]
    C = T.empty([M, N], "float32")
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), "float32")
        B_shared = T.alloc_shared((block_K, block_N), "float32")
        C_local = T.alloc_fragment((block_M, block_N), "float32")
        T.clear(C_local)
        for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
            T.copy(A[by * block_M, ko * block_K], A_shared)
            T.copy(B[ko * block_K, bx * block_N], B_shared)
            T.gemm(A_shared, B_shared, C_local)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


tuned = tilecore.autotune(configs=[{"block_M": 32}])(product)


@tilecore.compute
def halved(x):
    return x.exp() * 0.5


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(B.clone())
        self.kernel, self.function = product.compile(M=24, N=8, K=16), product

    def forward(self, x):
        return torch.relu(self.function(x, self.weight.detach()) + self.kernel(x, self.weight))


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(B.clone())

    def forward(self, x):
        return torch.relu(x @ self.weight)


@torch.no_grad()
def test_a_model_with_kernels_is_copied_and_saved():
    """It was a RuntimeError: "Module[library] does not support SaveToBytes"."""
    layer = Layer()
    expected = torch.relu(2 * (A @ B))
    torch.testing.assert_close(layer(A), expected)
    copied = copy.deepcopy(layer)
    assert copied.kernel is layer.kernel
    copied.weight.zero_()
    assert not copied(A).any()
    torch.testing.assert_close(layer(A), expected)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=False)(A), expected)


@torch.no_grad()
def test_a_copied_module_computes_with_its_own_weights():
    """It was a TypeError: "cannot pickle 'module' object"."""
    module = Plain()
    module.forward = tilecore.compute(module.forward)
    whole = tilecore.compute(Plain())
    expected = torch.relu(A @ B)
    for original, weight in ((module, lambda m: m.weight), (whole, lambda m: m.function.weight)):
        torch.testing.assert_close(original(A), expected)
        copied = copy.deepcopy(original)
        weight(copied).zero_()
        assert not copied(A).any()
        torch.testing.assert_close(original(A), expected)
    torch.testing.assert_close(pickle.loads(pickle.dumps(whole))(A), expected)


def test_what_has_a_name_is_found_by_it():
    assert pickle.loads(pickle.dumps(product)) is product
    assert pickle.loads(pickle.dumps(halved)) is halved
    with pytest.raises(pickle.PicklingError):  # this name is the untuned function's
        pickle.dumps(tuned)
    assert copy.deepcopy(tuned) is tuned
    finished = tilecore.jit(programs.matmul.program(M=32, N=32, K=32, dtype="float32"))
    again = pickle.loads(pickle.dumps(finished))
    x = torch.randn(32, 32)
    torch.testing.assert_close(again(x, x), finished(x, x))


def test_a_kernel_whose_artifact_is_elsewhere_is_compiled_again(tmp_path):
    kernel = product.compile(M=24, N=8, K=16)
    kernel.latency = 0.25
    text = pickle.dumps(kernel)
    kernel.artifact = replace(kernel.artifact, path=tmp_path / "gone")
    for told in (text, pickle.dumps(kernel)):
        again = pickle.loads(told)
        assert again.latency == 0.25
        torch.testing.assert_close(again(A, B), A @ B)
    with pytest.raises(TypeError, match="keeps a packed tensor"):
        pickle.dumps(product.compile(M=24, N=8, K=16).keep(B=B))


def _in_another(kernel):
    return float((kernel(A.clone().fill_(1), B.clone().fill_(2))).sum())


@pytest.mark.exhaustive
def test_other_processes_get_kernels():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as others:
        found = others.submit(_in_another, product.compile(M=24, N=8, K=16)).result()
    assert found == 24 * 8 * 16 * 2
