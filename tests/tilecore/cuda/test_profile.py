"""Bank conflicts and sectors counted by the emulator, against cases known by hand."""

import numpy as np
import pytest

from tests.tilecore.cuda.programs import gemm_sm80
from tests.tilecore.cuda.text_kernels import Kernel, pointer, source
from tilecore.codegen.cuda import generate
from tilecore.emulator import build
from tilecore.lowering.cuda import instructions as I
from tilecore.target import parse_target


def _profile(body, instructions=(), dtype=np.float32):
    kernel = Kernel("k", body, (pointer("out", "float"),), shared_bytes=16384)
    out = np.zeros(4096, dtype)
    return build(source([kernel], instructions)).profile({"out": out})


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("index", "found"),
    [
        ("threadIdx.x", 1), ("2 * threadIdx.x", 2), ("32 * threadIdx.x", 32),
        ("33 * threadIdx.x", 1), ("threadIdx.x / 4", 1), ("8 * (threadIdx.x % 8)", 2),
    ],
)  # fmt: skip
def test_bank_conflicts_of_words(index, found):
    (load,) = [
        c
        for c in _profile(f"float v = ((float*)smem)[{index}];\nif (v == 5) __trap();")
        if c.kind == "shared load"
    ]
    assert (load.requests, load.found, load.ideal, load.excess) == (1, found, 1, found - 1)


@pytest.mark.few(1)
@pytest.mark.parametrize(("stride", "found"), [(16, 4), (32, 8), (128, 32), (144, 4)])
def test_bank_conflicts_of_vectors(stride, found):
    body = f"float4 v = *(float4*)(smem + {stride} * threadIdx.x);\n"
    body += "*(float4*)(out + 4 * threadIdx.x) = v;"
    (load,) = [c for c in _profile(body) if c.kind == "shared load"]
    assert (load.lane_bytes, load.requests, load.found, load.ideal) == (16, 1, found, 4)


@pytest.mark.few(1)
@pytest.mark.parametrize(("stride", "found"), [(16, 1), (64, 4), (80, 1), (128, 8)])
def test_bank_conflicts_of_matrices(stride, found):
    body = f"unsigned r[1];\ntc_ldmatrix_x1(r, smem + {stride} * (threadIdx.x % 8));"
    (load,) = _profile(body, [I.ldmatrix(1)])
    assert (load.requests, load.found, load.ideal) == (1, found, 1)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("index", "found"), [("threadIdx.x", 4), ("8 * threadIdx.x", 32), ("threadIdx.x + 4", 5)]
)
def test_sectors_of_global_memory(index, found):
    (store,) = _profile(f"out[{index}] = 1.0f;")
    assert (store.kind, store.requests, store.found, store.ideal) == ("global store", 1, found, 4)


def test_the_product_for_sm80_has_no_bank_conflicts_and_names_its_lines():
    made = generate(gemm_sm80(64, 64, 64), parse_target("sm_80"))
    arrays = {n: np.ones((64, 64), np.float16) for n in "ABC"}
    lines = made.text.splitlines()
    counts = build(made).profile(arrays)
    assert sum(c.excess for c in counts if c.kind.startswith("shared")) == 0
    for count in counts:
        word = {"shared load": "ldmatrix", "global store": "C_ptr"}.get(count.kind, "tc_cp_async")
        assert word in lines[count.line - 1]
