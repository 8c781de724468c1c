"""What the runtime asks HIP for, seen by a library of our own; which device is there."""

import ctypes
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import tilecore.language as T
from tilecore import amd_target, gpu_target
from tilecore import target as targets
from tilecore.amd_target import local_amd_device
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.errors import ArtifactError, LaunchFailed, ToolchainMissing
from tilecore.runtime import CudaKernel, hip, load
from tilecore.runtime.hip import HipDriver

SOURCE = Path(__file__).parent / "fake_libamdhip64.c"
M = T.dynamic("M")


@T.prim_func
def scaled(
    A: T.Tensor((M, 64), "float16"), B: T.Tensor((64, 64), "float16"), scale: T.float32,
    C: T.Tensor((M, 64), "float32"),
):  # fmt: skip
    with T.Kernel(T.ceildiv(M, 64), threads=256) as bx:
        A_s = T.alloc_shared((64, 64), "float16")
        B_s = T.alloc_shared((64, 64), "float16")
        C_l = T.alloc_fragment((64, 64), "float32")
        T.clear(C_l)
        T.copy(A[bx * 64, 0], A_s)
        T.copy(B, B_s)
        T.gemm(A_s, B_s, C_l)
        for i, j in T.Parallel(64, 64):
            C_l[i, j] *= scale
        T.copy(C_l, C[bx * 64, 0])


def torch_of(arch, **version):
    """A torch for ROCm with two devices, the first of which is the current one."""
    return SimpleNamespace(
        __file__="/nowhere/torch/__init__.py", version=SimpleNamespace(**{"hip": "6.4", **version}),
        cuda=SimpleNamespace(
            is_available=lambda: True, init=lambda: None, current_device=lambda: 0,
            current_stream=lambda device: SimpleNamespace(cuda_stream=0x7700000000 + device),
            device=lambda device: nullcontext(),
            get_device_properties=lambda device: SimpleNamespace(gcnArchName=arch),
        ),
    )  # fmt: skip


class OnCpu(HipDriver):
    """Takes tensors of the CPU."""

    device_type = "cpu"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    path = tmp_path_factory.mktemp("hip") / "libamdhip64.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(path), str(SOURCE)], check=True)
    found = ctypes.CDLL(str(path))
    found.fake_notes.restype = ctypes.c_char_p
    return found


@pytest.fixture
def artifact(tmp_path):
    return compile(scaled, "mi300x", store=ArtifactStore(tmp_path))


def tensors(rows):
    return torch.zeros(rows, 64).half(), torch.zeros(64, 64).half(), 0.5, torch.zeros(rows, 64)


def test_a_kernel_is_loaded_once_and_gets_addresses_and_sizes(library, artifact):
    kernel = CudaKernel(artifact, OnCpu(library, torch_of("gfx942:sramecc+:xnack-")))
    before, expected = library.fake_notes(), ["load ELF"]
    for rows in (100, 64, 100):
        a, b, scale, c = tensors(rows)
        kernel(a, b, scale, c)
        addresses = " ".join(f"{t.data_ptr():x}" for t in (a, b, c))
        expected.append(
            f"launch 0x2200000000 grid {-(-rows // 64)} 1 1 block 256 1 1 shared 0 "
            f"stream 0x7700000000 extra (nil): {addresses} {rows} 0.5"
        )
    notes = library.fake_notes().removeprefix(before).decode().splitlines()
    asked = [note for note in notes if note.startswith("kernel")]
    assert asked == ["kernel main_kernel of 0x1100000000"] * 2  # one for each number of rows
    assert [n for n in notes if n not in asked] == expected


def test_the_library_that_is_loaded_is_taken(library):
    found = HipDriver(torch=torch_of("gfx942"))._api  # not the system's, nor another of torch's
    found.fake_notes.restype = ctypes.c_char_p
    before = library.fake_notes()
    library.hipModuleLoadData(ctypes.byref(ctypes.c_void_p()), b"\x7fELF")
    assert found.fake_notes() != before


def test_what_the_runtime_refuses_is_told(library, artifact):
    driver = OnCpu(library, torch_of("gfx942"))
    with pytest.raises(LaunchFailed, match=r"hipModuleLaunchKernel: hipError 1: invalid value"):
        CudaKernel(artifact, driver)(*tensors(4 * 64))
    with pytest.raises(LaunchFailed, match=r"hipModuleGetFunction: hipError 500: not found"):
        driver.kernel(driver.load(b"\x7fELF"), "absent", 0, 0)
    with pytest.raises(LaunchFailed, match=r"fewer than 2\^32 threads"):
        driver.launcher(None, (1 << 24, 1, 1), (256, 1, 1), (1, 1, 1), 0, 0)
    with pytest.raises(ArtifactError, match="compiled for gfx942, the device has gfx90a"):
        CudaKernel(artifact, OnCpu(library, torch_of("gfx90a:xnack-")))(*tensors(64))


def test_without_rocm_loading_says_what_is_missing(artifact, tmp_path, monkeypatch):
    with pytest.raises(ToolchainMissing, match="torch for ROCm"):
        HipDriver(torch=torch_of("gfx942", hip=None))
    nothing = tmp_path / "maps"
    nothing.touch()
    monkeypatch.setattr(hip, "MAPS", nothing)
    with pytest.raises(ToolchainMissing, match=r"libamdhip64\.so"):
        HipDriver(torch=torch_of("gfx942"))
    missing = ToolchainMissing if artifact.manifest.resources["linked"] else ArtifactError
    with pytest.raises(missing, match=r"torch for ROCm|install lld"):
        load(artifact)


def node(folder, number, **properties):
    path = folder / str(number)
    path.mkdir()
    lines = (f"{name} {value}\n" for name, value in properties.items())
    path.joinpath("properties").write_text("".join(lines))


@pytest.mark.parametrize(
    ("version", "units", "device", "multiprocessors"),
    [
        (90402, 1216, "mi300x", 304), (90402, 912, "mi300a", 228), (90010, 440, "mi250x", 110),
        (90500, 1024, "mi350x", 256), (90402, 152, "gfx942", 38),
    ],
)  # fmt: skip
def test_linux_says_which_device_is_there(tmp_path, version, units, device, multiprocessors):
    node(tmp_path, 0, cpu_cores_count=96, simd_count=0, gfx_target_version=0)
    node(tmp_path, 1, simd_count=32, simd_per_cu=2, gfx_target_version=110000)  # a desktop's
    tmp_path.joinpath("2").mkdir()  # a device of somebody else's
    node(tmp_path, 10, simd_count=units, simd_per_cu=4, gfx_target_version=version)
    found = local_amd_device(tmp_path)
    assert (found.device, found.multiprocessors) == (device, multiprocessors)
    assert local_amd_device(tmp_path / "1") is None


@pytest.mark.parametrize(
    ("cuda", "rocm", "expected"), [("13.0", None, "sm_80"), (None, "6.4", "gfx942"), (None,) * 3]
)
def test_auto_is_the_device_that_torch_can_use(monkeypatch, cuda, rocm, expected):
    nvidia, amd = targets.parse_target("sm_80"), targets.parse_target("gfx942")
    monkeypatch.setattr(gpu_target, "local_device", lambda: nvidia)
    monkeypatch.setattr(amd_target, "local_amd_device", lambda: amd)
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda=cuda, hip=rocm))
    found = targets.parse_target("auto")
    assert getattr(found, "arch", None) == expected
