"""What cuda-bindings passes to the driver for our calls, seen by a libcuda of our own."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "fake_libcuda.c"
CODE = """
import ctypes, sys
from types import SimpleNamespace
fake = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
fake.fake_notes.restype = ctypes.c_char_p
import cuda.bindings.driver as api
from tilecore.errors import LaunchFailed
from tilecore.runtime.driver import CudaDriver, MapShape
cuda = SimpleNamespace(
    is_available=lambda: True, init=lambda: None, get_device_capability=lambda i: (9, 0),
    current_device=lambda: 1, current_stream=lambda i: SimpleNamespace(cuda_stream=0x77),
)
driver = CudaDriver(api, SimpleNamespace(cuda=cuda))
driver.check_arch("folder", "sm_90a", 0)
library = driver.load(b"cubin")
kernel = driver.kernel(library, "gemm", 1, 65536)
pointer, number = ctypes.c_void_p(0xabcd), ctypes.c_int(42)
parameters = (ctypes.c_void_p * 2)(ctypes.addressof(pointer), ctypes.addressof(number))
where = ctypes.addressof(parameters)
stream = driver.stream(1)
assert [driver.on(1), driver.on(1)] == [None, None]
alone = driver.launcher(kernel, (1, 2, 3), (128, 1, 1), (1, 1, 1), 4096, where)
cluster = driver.launcher(kernel, (4, 2, 1), (384, 1, 1), (2, 1, 1), 512, where)
chained = driver.launcher(kernel, (4, 1, 1), (128, 1, 1), (1, 1, 1), 0, where, True)
both = driver.launcher(kernel, (4, 1, 1), (128, 1, 1), (2, 1, 1), 0, where, True)
for launch in (alone, cluster, cluster, chained, both):
    launch(stream)
memory = (ctypes.c_ubyte * 256)()
target = ctypes.addressof(memory) + -ctypes.addressof(memory) % 128
for shape in (
    MapShape("float16", (256, 512), (1024,), (64, 128), 128),
    MapShape("float32", (100,), (), (32,), 0),
):
    ctypes.memset(target, 0, 128)
    driver.encode_map(target, 0x10000, shape)
    assert ctypes.string_at(target, 128) == b"\\x5a" * 128
try:
    driver.kernel(library, "absent", 0, 0)
except LaunchFailed as error:
    print(error)
print(fake.fake_notes().decode())
"""
EXPECTED = """\
TC405 launch-failed: cuLibraryGetKernel: CUDA_ERROR_INVALID_VALUE: invalid argument
load cubin 0 0
kernel gemm of 0x11
attribute 8 = 65536 of 0x22 on 1
context of 1 retained
context 0x33 entered
launch 0x22 grid 1 2 3 block 128 1 1 shared 4096 stream 0x77 extra (nil): abcd 42
launch 0x22 grid 4 2 1 block 384 1 1 shared 512 stream 0x77 with 4: 2 1 1 extra (nil): abcd
launch 0x22 grid 4 2 1 block 384 1 1 shared 512 stream 0x77 with 4: 2 1 1 extra (nil): abcd
launch 0x22 grid 4 1 1 block 128 1 1 shared 0 stream 0x77 with 6: 1 0 0 extra (nil): abcd
launch 0x22 grid 4 1 1 block 128 1 1 shared 0 stream 0x77 with 4: 2 1 1 6: 1 0 0 extra (nil): abcd
map (at a multiple of 128: 1) type 6 rank 2 at 0x10000: 256 512 / 1024 / 64 128 / 1 1 / 0 3 2 0
map (at a multiple of 128: 1) type 7 rank 1 at 0x10000: 100 0 / 0 / 32 0 / 1 0 / 0 0 2 0
kernel absent of 0x11"""


def _has_bindings():
    try:
        return importlib.util.find_spec("cuda.bindings.driver") is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.skipif(not _has_bindings(), reason="cuda-bindings is not installed")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_calls_of_the_driver(tmp_path):
    library = tmp_path / "libcuda.so.1"
    options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(SOURCE)]
    subprocess.run(["gcc", *options, "-ldl"], check=True)
    run = subprocess.run(
        [sys.executable, "-c", CODE, str(library)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == EXPECTED
