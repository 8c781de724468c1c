"""Products with tensor memory (tcgen05, sm_100a) on the emulator, and their seeded bugs."""

import numpy as np
import pytest

from tests.tilecore.cuda.text_kernels import Kernel, pointer, source, tensor_map
from tilecore.codegen.cubin import read_features
from tilecore.codegen.cuda import HEADER
from tilecore.codegen.nvrtc import compile_cuda, load_nvrtc
from tilecore.emulator import ALL_SCHEDULES, LATE, TensorMap, build
from tilecore.errors import EmulationError
from tilecore.lowering.cuda import instructions as I

M, N, K, STEP, STAGES = 128, 64, 256, 64, 2
A_BYTES, B_BYTES = M * STEP * 2, N * STEP * 2
STAGE = A_BYTES + B_BYTES
USED = (
    I.tma_load(2), I.barrier_init(), I.barrier_expect(), I.barrier_wait(), I.fence_barrier_init(),
    I.tensor_allocate(64), I.tensor_free(64), I.tensor_mma(N, "float16", "float16"),
    I.tensor_descriptor(128, 16, 1024), I.tensor_commit(), I.tensor_load(32),
    I.tensor_wait_loads(), I.tensor_fence(True), I.tensor_fence(False), I.sync_threads(),
)  # fmt: skip
MMA, DESCRIPTOR = (
    I.tensor_mma(N, "float16", "float16").name,
    I.tensor_descriptor(128, 16, 1024).name,
)
BODY = f"""
  unsigned char *full = smem + {STAGES * STAGE}, *empty = full + 16, *done = full + 32;
  unsigned* place = (unsigned*)(full + 48);
  int t = threadIdx.x, warp = t / 32;
  if (warp == 0) tc_tensor_allocate_64(place);
  if (t == 0) {{
    for (int s = 0; s < {STAGES}; ++s) {{
      tc_barrier_init(full + 8 * s, 1);
      tc_barrier_init(empty + 8 * s, 1);
    }}
    tc_barrier_init(done, 1);
    tc_fence_barrier_init();
  }}
  tc_tensor_fence_before();
  tc_sync_threads();
  tc_tensor_fence_after();
  unsigned d = *place;
  if (t == 0) {{
    for (int k = 0; k < {K // STEP}; ++k) {{
      int s = k % {STAGES};
      unsigned char* a_tile = smem + s * {STAGE};
      tc_barrier_wait(empty + 8 * s, (k / {STAGES} + 1) % 2);
      tc_barrier_expect(full + 8 * s, {STAGE});
      tc_tma_load_2d(a_tile, (unsigned long long)&a, full + 8 * s, k * {STEP}, 0);
      tc_tma_load_2d(a_tile + {A_BYTES}, (unsigned long long)&b, full + 8 * s, k * {STEP}, 0);
    }}
  }}
  if (t == 32) {{
    for (int k = 0; k < {K // STEP}; ++k) {{
      int s = k % {STAGES};
      unsigned char* a_tile = smem + s * {STAGE};
      tc_barrier_wait(full + 8 * s, k / {STAGES} % 2);
      for (int i = 0; i < {STEP // 16}; ++i) {{
        unsigned long long x = {DESCRIPTOR}(a_tile) + 2 * i;
        {MMA}(d, x, {DESCRIPTOR}(a_tile + {A_BYTES}) + 2 * i, k > 0 || i > 0);
      }}
      tc_tensor_commit(empty + 8 * s);
    }}
    tc_tensor_commit(done);
  }}
  tc_barrier_wait(done, 0);
  tc_tensor_fence_after();
  for (int j = 0; j < {N // 32}; ++j) {{
    float r[32];
    tc_tensor_load_32x32b_32(r, d + j * 32 + (warp * 32 << 16));
    tc_tensor_wait_loads();
    for (int i = 0; i < 32; ++i) c[t * {N} + j * 32 + i] = r[i];
  }}
  tc_tensor_fence_before();
  tc_sync_threads();
  if (warp == 0) tc_tensor_free_64(d);"""
BUGS = {
    "accumulator read too early": ("  tc_barrier_wait(done, 0);\n", "", "still in flight"),
    "no wait for the loads": ("    tc_tensor_wait_loads();\n", "", "wrong result"),
    "no wait for the tile": (
        f"      tc_barrier_wait(full + 8 * s, k / {STAGES} % 2);\n", "", "race: .* tcgen05.mma",
    ),
    "no commit": ("      tc_tensor_commit(empty + 8 * s);\n", "", "deadlock"),
    "memory that is not freed": ("  if (warp == 0) tc_tensor_free_64(d);", "", "was not freed"),
    "another warp's lanes": ("(warp * 32 << 16)", "0", "but the warp has lanes 32 to 63"),
    "columns that are not allocated": (f"{MMA}(d,", f"{MMA}(d + 32,", "is not allocated"),
}  # fmt: skip


def _source(body=BODY):
    parameters = (tensor_map("a"), tensor_map("b"), pointer("c", "float"))
    kernel = Kernel("k", body, parameters, threads=128, shared_bytes=STAGES * STAGE + 64)
    return source([kernel], USED, "sm_100a")


def _check(body, schedules):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, K)).astype(np.float16) for n in (M, N))
    c = np.zeros((M, N), np.float32)
    kernels = build(_source(body))
    for schedule in schedules:
        c[...] = np.nan
        arguments = {
            "a": TensorMap(a, (M, STEP), 128), "b": TensorMap(b, (N, STEP), 128), "c": c
        }  # fmt: skip
        kernels.run(arguments, schedule)
        if not np.abs(c - a.astype(np.float64) @ b.astype(np.float64).T).max() < 1e-3:
            raise EmulationError(kernel="k", what="wrong result")


def test_a_product_in_tensor_memory():
    _check(BODY, ALL_SCHEDULES)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_caught(name):
    old, new, message = BUGS[name]
    assert old in BODY
    with pytest.raises(EmulationError, match=message):
        _check(BODY.replace(old, new), (LATE,))


@pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")
def test_the_machine_code_has_the_units():
    made = _source()
    cubin = compile_cuda(HEADER + made.text, "sm_100a")
    found = read_features(cubin.data, "sm_100a")["k"]
    assert {"UTMALDG", "UTCMMA", "LDTM"} <= found.opcodes.keys()
    assert cubin.spills == 0


@pytest.mark.parametrize(
    ("options", "bits"),
    [
        ({"m": 128, "dtype": "bfloat16"}, 136316048),
        ({"m": 128, "dtype": "bfloat16", "b_major": "n"}, 136381584),
        ({"m": 128, "dtype": "bfloat16", "a_major": "m"}, 136348816),
        ({"m": 64, "dtype": "bfloat16"}, 69207184),
        ({"m": 128, "dtype": "float8_e4m3fn"}, 136314896),
    ],
)
def test_instructions_are_described_as_tilelang_describes_them(options, bits):
    """Products of 128 columns; the numbers stand in the code of TileLang 0.1.15 for sm_100a."""
    given = dict(options)
    dtype = given.pop("dtype")
    assert f'"r"({bits:#x}u)' in I.tensor_mma(128, dtype, dtype, **given).cuda


@pytest.mark.parametrize(
    ("swizzle", "leading", "fields"),
    [(128, 16, (1, 64, 2)), (128, 8192, (512, 64, 2)), (64, 16, (1, 32, 4))],
)
def test_matrices_are_described_as_tilelang_describes_them(swizzle, leading, fields):
    """Leading and stride offsets in units of 16 bytes and the kind of swizzle, as above."""
    offset, stride, kind = fields
    bits = kind << 61 | 1 << 46 | stride << 32 | offset << 16
    assert f"return {bits:#x}ull" in I.tensor_descriptor(swizzle, leading, 8 * swizzle).cuda
