"""Artifacts of a GPU: stored, loaded and launched; the driver is the emulator's.

The path through NVIDIA's driver has not run on a device here.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from tvm import tirx as tir

from tests.tilecore.cuda.programs import (
    bind,
    block,
    gemm_sm80,
    gemm_sm90,
    imm,
    load,
    store,
    when,
)
from tilecore.artifact import ArtifactStore, Manifest, ParameterSpec
from tilecore.codegen.cuda import generate
from tilecore.device_code import DeviceCode, TensorMapRecipe, Workspace
from tilecore.emulator import EmulatedDriver
from tilecore.errors import AliasError, ArgumentError, ArtifactError, ToolchainMissing
from tilecore.runtime import load as load_artifact
from tilecore.runtime.cuda import CudaKernel
from tilecore.runtime.dims import evaluate
from tilecore.runtime.driver import check_capability
from tilecore.runtime.launcher import _code
from tilecore.target import parse_target


def _spec(name, shape, dtype="float16", *, is_written=False, kind="tensor"):
    return ParameterSpec(name, dtype, shape, is_output=False, is_written=is_written, kind=kind)


def _artifact(store, source, parameters, maps=(), workspaces=(), key="ab" * 32):
    manifest = Manifest(
        key=key, name="p", entry="main", parameters=parameters, target="cuda", isa=source.arch,
        config={}, program_digest="0", versions={}, resources={"registers": 72},
        device=DeviceCode(source.arch, source.entries, maps, workspaces),
    )  # fmt: skip
    return store.put(manifest, "program", lambda p: p.write_bytes(b"cubin"), source.text)


def scale(target="sm_80"):
    """y (n) = x (n) * factor + t, t (n) being written by a first kernel; n is dynamic."""
    n, factor = tir.Var("n", "int32"), tir.Var("factor", "float32")
    x, y, t = (tir.decl_buffer((n,), "float32", name) for name in "xyt")

    def kernel(make):
        return bind(
            "blockIdx.x",
            tir.truncdiv(n + 127, imm(128)),
            lambda bx: bind("threadIdx.x", 128, lambda tx: make(bx * 128 + tx)),
        )

    first = kernel(lambda i: when(i < n, store(t, tir.Cast("float32", i), i)))
    second = kernel(lambda i: when(i < n, store(y, load(x, i) * factor + load(t, i), i)))
    func = tir.PrimFunc([x, y, factor, n, t], block(first, second))
    return generate(func, parse_target(target))


@pytest.fixture
def scaled(tmp_path):
    source = scale()
    parameters = (
        _spec("x", ("n",), "float32"),
        _spec("y", ("n",), "float32", is_written=True),
        _spec("factor", (), "float32", kind="scalar"),
    )
    workspaces = (Workspace("t", "float32", ("n",)),)
    artifact = _artifact(ArtifactStore(tmp_path), source, parameters, (), workspaces)
    driver = EmulatedDriver(source)
    return CudaKernel(artifact, driver), driver


def test_grids_scalars_and_workspaces_follow_the_dimensions_of_a_call(scaled):
    kernel, driver = scaled
    for n in (1, 128, 300, 300):
        x, y = torch.randn(n), torch.full((n,), float("nan"))
        kernel(x, y, 2.5)
        torch.testing.assert_close(y, x * 2.5 + torch.arange(n))
    assert driver.launches == 8


@pytest.fixture
def prepared(scaled, monkeypatch):
    """The kernel, and the grids of the launches that were prepared for it so far."""
    kernel, driver = scaled
    grids, launcher = [], driver.launcher

    def counted(found, grid, *rest):
        grids.append(grid)
        return launcher(found, grid, *rest)

    monkeypatch.setattr(driver, "launcher", counted)
    return kernel, grids


def _runs(kernel, n=64, factor=1.0):
    x, y = torch.randn(n), torch.full((n,), float("nan"))
    kernel(x, y, factor)
    torch.testing.assert_close(y, x * factor + torch.arange(n))


def test_calls_with_other_addresses_and_numbers_reuse_the_launches(prepared):
    kernel, grids = prepared
    for factor in (1.0, 2.5, -3.0, 2.5):
        _runs(kernel, factor=factor)
    assert grids == [(1, 1, 1)] * 2
    _runs(kernel, factor=2)  # an integer is another kind of call
    _runs(kernel, factor=-7)
    assert len(grids) == 4


def test_calls_of_sizes_that_alternate_are_looked_at_once(prepared, monkeypatch):
    kernel, grids = prepared
    for n in (64, 300):
        _runs(kernel, n)
    monkeypatch.setattr("tilecore.runtime.cuda.check", None)
    for n in (64, 300, 64, 300):
        _runs(kernel, n)
    assert grids == [(1, 1, 1)] * 2 + [(3, 1, 1)] * 2


def test_of_too_many_sizes_the_oldest_is_prepared_anew(prepared, monkeypatch):
    kernel, grids = prepared
    monkeypatch.setattr("tilecore.runtime.cuda.MOST_SIGNATURES", 2)
    for n in (64, 65, 66, 66, 65):
        _runs(kernel, n)
    assert len(grids) == 3 * 2
    _runs(kernel, 64)
    assert len(grids) == 4 * 2


def test_calls_of_all_sizes_are_one_text(prepared):
    kernel, _ = prepared
    before = _code.cache_info().misses
    for n in (33, 34, 35, 36):
        _runs(kernel, n)
    assert _code.cache_info().misses <= before + 1


@pytest.mark.parametrize("text", ["M.real", "print(M)", "min(*M)", "[M]", "M / 2", "M if M else 1"])
def test_extents_are_arithmetic_alone(text):
    with pytest.raises(ValueError, match="no extent"):
        evaluate(text, {"M": 4})
    assert evaluate("min((M + 127) // 128 * 2, 3) | 4", {"M": 4}) == 6


def test_calls_on_many_threads_do_not_mix_up_their_tensors(scaled):
    kernel, _ = scaled
    _runs(kernel)
    with ThreadPoolExecutor(4) as threads:
        runs = [threads.submit(_runs, kernel, n, float(n)) for n in (64, 65, 64, 130) * 8]
    assert [run.result() for run in runs] == [None] * 32


def test_a_kernel_runs_on_the_device_of_its_tensors(scaled, monkeypatch):
    kernel, driver = scaled
    inside = []

    @contextmanager
    def device():
        inside.append(True)
        yield
        inside.pop()

    monkeypatch.setattr(driver, "on", lambda _: None if inside else device())
    monkeypatch.setattr(driver, "stream", lambda _: 0 if inside else pytest.fail("elsewhere"))
    _runs(kernel)
    _runs(kernel)
    assert not inside


def test_memory_that_is_shared_or_not_aligned_is_refused_after_calls_like_it(scaled):
    kernel, _ = scaled
    _runs(kernel)
    memory = torch.randn(160)
    kernel(memory[:64], memory[64:128], 1.0)
    for x, y in ((memory[:64], memory[60:124]), (memory[96:], memory[64:128])):
        with pytest.raises(AliasError):
            kernel(x, y, 1.0)
    with pytest.raises(ArgumentError, match="aligned to 16 bytes"):
        kernel(memory[:64], memory[65:129], 1.0)
    with pytest.raises(ArgumentError, match="contiguous"):
        kernel(memory[:128:2], torch.empty(64), 1.0)
    with pytest.raises(ArgumentError, match="dtype float32"):
        kernel(memory[:64], torch.empty(64, dtype=torch.int32), 1.0)
    with pytest.raises(ArgumentError, match="a tensor on the cpu"):
        kernel(memory[:64], torch.empty(64, device="meta"), 1.0)
    with pytest.raises(ArgumentError, match=r"torch\.Tensor"):
        kernel(memory[:64], "y", 1.0)


def test_an_empty_grid_is_not_launched(scaled):
    kernel, driver = scaled
    kernel(torch.empty(0), torch.empty(0), 1.0)
    assert driver.launches == 0


def test_wrong_arguments(scaled):
    kernel, _ = scaled
    x = torch.randn(64)
    kernel(x, torch.empty(64), 1.0)
    with pytest.raises(ArgumentError, match="3 arguments"):
        kernel(x, x)
    with pytest.raises(ArgumentError, match=r"expected n = 64, as in `x`"):
        kernel(x, torch.empty(65), 1.0)
    with pytest.raises(ArgumentError, match="dtype float32"):
        kernel(x.half(), torch.empty(64), 1.0)
    with pytest.raises(ArgumentError, match="a number"):
        kernel(x, torch.empty(64), [2])
    with pytest.raises(AliasError):
        kernel(x, x, 1.0)
    with pytest.raises(ArgumentError, match="aligned to 16 bytes"):
        kernel(torch.randn(65)[1:], torch.empty(64), 1.0)


def test_an_artifact_keeps_what_a_launch_needs(tmp_path):
    source = generate(gemm_sm90(128, 128, 256), parse_target("h100"))
    recipe = TensorMapRecipe("A_map", "A", "float16", (128, "k"), ("k", 1), (128, 64), 128)
    store = ArtifactStore(tmp_path)
    parameters = (_spec("A", (128, 256)),)
    made = _artifact(store, source, parameters, (recipe,), (Workspace("w", "float32", ("m", 2)),))
    found = store.get("ab" * 32)
    assert found is not None
    assert found.manifest == made.manifest
    assert found.manifest.device.maps == (recipe,)
    assert found.manifest.device.entries == source.entries
    assert found.library.name == "kernel.cubin"
    assert found.cuda_text == source.text
    assert json.loads(found.manifest.to_json())["resources"] == {"registers": 72}
    found.library.unlink()
    with pytest.raises(ArtifactError, match=r"no kernel\.cubin"):
        type(found).open(found.path)


def test_a_product_with_tensor_maps_runs_from_torch_tensors(tmp_path):
    m, n, k = 128, 128, 256
    source = generate(gemm_sm90(m, n, k), parse_target("h100"))
    specs = (_spec("A", (m, k)), _spec("B", (k, n)), _spec("C", (m, n), is_written=True))
    maps = (
        TensorMapRecipe("A_map", "A", "float16", (m, k), None, (128, 64), 128),
        TensorMapRecipe("B_map", "B", "float16", (k, n), None, (64, 64), 128),
        TensorMapRecipe("C_map", "C", "float16", (m, n), None, (128, 64), 0),
    )
    kernel = CudaKernel(
        _artifact(ArtifactStore(tmp_path), source, specs, maps), EmulatedDriver(source)
    )
    for _ in range(2):  # at the second call the maps get other addresses
        a, b = torch.randn(m, k).half(), torch.randn(k, n).half()
        c = torch.empty(m, n, dtype=torch.float16)
        kernel(a, b, c)
        torch.testing.assert_close(c.float(), a.float() @ b.float(), atol=0.05, rtol=0.01)


def test_a_product_for_sm80_runs_from_torch_tensors(tmp_path):
    m, n, k = 64, 64, 96
    source = generate(gemm_sm80(m, n, k), parse_target("sm_80"))
    specs = (_spec("A", (m, k)), _spec("B", (k, n)), _spec("C", (m, n), is_written=True))
    kernel = CudaKernel(_artifact(ArtifactStore(tmp_path), source, specs), EmulatedDriver(source))
    a, b = torch.randn(m, k).half(), torch.randn(k, n).half()
    c = torch.empty(m, n, dtype=torch.float16)
    kernel(a, b, c)
    torch.testing.assert_close(c.float(), a.float() @ b.float(), atol=0.05, rtol=0.01)


def test_a_device_runs_code_of_its_own_architecture_only():
    check_capability("p", "sm_80", 86)
    check_capability("p", "sm_90a", 90)
    for arch, capability in (("sm_90a", 100), ("sm_80", 75), ("sm_80", 90), ("sm_90a", 89)):
        with pytest.raises(ArtifactError, match=f"compiled for {arch}"):
            check_capability("p", arch, capability)


def test_without_a_driver_loading_says_what_is_missing(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    artifact = _artifact(ArtifactStore(tmp_path), scale(), ())
    with pytest.raises(ToolchainMissing, match="CUDA kernels"):
        load_artifact(artifact)


def test_the_runtime_loads_neither_tvm_nor_the_emulator():
    code = (
        "import tilecore.runtime.cuda, sys;"
        "print([m for m in ('tvm', 'tilecore.emulator', 'tilecore.codegen') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_calls_cost_microseconds(scaled):
    import time

    kernel, driver = scaled
    driver.launcher = lambda *_: lambda stream: None
    x, y = torch.randn(256), torch.empty(256)
    kernel(x, y, 1.0)
    begin = time.thread_time()
    for _ in range(500):
        kernel(x, y, 1.0)
    each = (time.thread_time() - begin) / 500
    print(f"{each * 1e6:.1f} us")
    assert each < 40e-6
