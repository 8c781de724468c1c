"""Layouts against literal tables of NVIDIA's manuals, so that emulator and generator cannot drift.

Sources: PTX ISA 9.1, section 5.5.7 (swizzling modes) and the figures' formulas of sections 9.7.14.5
and 9.7.15.5.1.1; CUTLASS 7107b055, cute/atom/mma_traits_sm{70,75,80,89,90,90_gmma,100_frag}.hpp,
whose layouts a host program printed. Nothing here is computed by tilecore's own rules.
"""

import numpy as np
import pytest

from tests.tilecore.cuda.text_kernels import run
from tilecore.emulator import TensorMap
from tilecore.errors import EmulationError
from tilecore.inference.gpu.plan import SharedLayout
from tilecore.inference.gpu.products.choice import accumulators
from tilecore.inference.gpu.products.tensor_products import spread_rows
from tilecore.lowering.cuda import instructions as I
from tilecore.lowering.cuda.memory import shared_offset

# Lines of 128 bytes of shared memory: which chunk of 16 bytes of the source lies where.
SWIZZLED = {
    32: ["01234567", "10325476"],
    64: ["01234567", "10325476", "23016745", "32107654"],
    128: ["01234567", "10325476", "23016745", "32107654",
          "45670123", "54761032", "67452301", "76543210"],
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("swizzle", SWIZZLED)
def test_the_swizzles_of_shared_tiles(swizzle):
    """A tile of 16 rows of one panel, as the generator lays it out and as TMA fills it."""
    rows, per_line, chunks = 16, 128 // swizzle, swizzle // 16
    expected = np.empty((rows, chunks), np.int64)  # the source chunk (row, chunk) at each place
    lines = SWIZZLED[swizzle]
    for line in range(rows // per_line):
        for place, source in enumerate(lines[line % len(lines)]):
            row, chunk = divmod(line * 8 + int(source), chunks)
            where = line * 8 + place
            expected.flat[where] = row * chunks + chunk
    layout = SharedLayout((rows, swizzle // 4), 4, swizzle, swizzle // 4)
    found = np.empty(rows * chunks, np.int64)
    for row in range(rows):
        for chunk in range(chunks):
            at = shared_offset(layout, [row, chunk * 4]) * 4
            assert at % 16 == 0
            found[at // 16] = row * chunks + chunk
    np.testing.assert_array_equal(found, expected.ravel())
    tensor = np.repeat(np.arange(rows * chunks, dtype=np.int32), 4).reshape(rows, swizzle // 4)
    seen = np.zeros(rows * swizzle // 4, np.int32)
    load = I.tma_load(2)
    body = f"""
      unsigned char* bar = smem + 4096;
      if (threadIdx.x == 0) {{
        tc_barrier_init(bar, 1); tc_fence_barrier_init(); tc_barrier_expect(bar, {seen.nbytes});
        {load.name}(smem, (unsigned long long)&tensor, bar, 0, 0);
      }}
      __syncthreads();
      tc_barrier_wait(bar, 0);
      for (int i = threadIdx.x; i < {seen.size}; i += 32) seen[i] = ((int*)smem)[i];"""
    used = [load, I.barrier_init(), I.barrier_expect(), I.barrier_wait(), I.fence_barrier_init()]
    arguments = {"tensor": TensorMap(tensor, (rows, swizzle // 4), swizzle), "seen": seen}
    run(body, arguments, used, shared_bytes=4104)
    np.testing.assert_array_equal(seen[::4], expected.ravel())


# (shape, A, B, sums, lane) -> (row, column) of the elements of A, (row, column) of B, of C.
FRAGMENTS = [
    ("m16n8k16", "float16", "float16", "float32", 5,
     [(1, 2), (1, 3), (9, 2), (9, 3), (1, 10), (1, 11), (9, 10), (9, 11)],
     [(2, 1), (3, 1), (10, 1), (11, 1)], [(1, 2), (1, 3), (9, 2), (9, 3)]),
    ("m16n8k16", "bfloat16", "bfloat16", "float32", 30,
     [(7, 4), (7, 5), (15, 4), (15, 5), (7, 12), (7, 13), (15, 12), (15, 13)],
     [(4, 7), (5, 7), (12, 7), (13, 7)], [(7, 4), (7, 5), (15, 4), (15, 5)]),
    ("m16n8k8", "float16", "float16", "float32", 18,
     [(4, 4), (4, 5), (12, 4), (12, 5)], [(4, 4), (5, 4)], [(4, 4), (4, 5), (12, 4), (12, 5)]),
    ("m16n8k8", "tfloat32", "tfloat32", "float32", 18,
     [(4, 2), (12, 2), (4, 6), (12, 6)], [(2, 4), (6, 4)], [(4, 4), (4, 5), (12, 4), (12, 5)]),
    ("m16n8k4", "tfloat32", "tfloat32", "float32", 31,
     [(7, 3), (15, 3)], [(3, 7)], [(7, 6), (7, 7), (15, 6), (15, 7)]),
    ("m16n8k32", "int8", "uint8", "int32", 5,
     [(1, 4), (1, 5), (1, 6), (1, 7), (9, 4), (9, 5), (9, 6), (9, 7),
      (1, 20), (1, 21), (1, 22), (1, 23), (9, 20), (9, 21), (9, 22), (9, 23)],
     [(4, 1), (5, 1), (6, 1), (7, 1), (20, 1), (21, 1), (22, 1), (23, 1)],
     [(1, 2), (1, 3), (9, 2), (9, 3)]),
    ("m16n8k32", "float8_e4m3fn", "float8_e5m2", "float32", 18,
     [(4, 8), (4, 9), (4, 10), (4, 11), (12, 8), (12, 9), (12, 10), (12, 11),
      (4, 24), (4, 25), (4, 26), (4, 27), (12, 24), (12, 25), (12, 26), (12, 27)],
     [(8, 4), (9, 4), (10, 4), (11, 4), (24, 4), (25, 4), (26, 4), (27, 4)],
     [(4, 4), (4, 5), (12, 4), (12, 5)]),
    ("m16n8k16", "int8", "int8", "int32", 18,
     [(4, 8), (4, 9), (4, 10), (4, 11), (12, 8), (12, 9), (12, 10), (12, 11)],
     [(8, 4), (9, 4), (10, 4), (11, 4)], [(4, 4), (4, 5), (12, 4), (12, 5)]),
    ("m8n8k16", "int8", "int8", "int32", 18,
     [(4, 8), (4, 9), (4, 10), (4, 11)], [(8, 4), (9, 4), (10, 4), (11, 4)], [(4, 4), (4, 5)]),
    ("m8n8k4", "float64", "float64", "float64", 18, [(4, 2)], [(2, 4)], [(4, 4), (4, 5)]),
    ("m16n8k4", "float64", "float64", "float64", 18,
     [(4, 2), (12, 2)], [(2, 4)], [(4, 4), (4, 5), (12, 4), (12, 5)]),
    ("m16n8k8", "float64", "float64", "float64", 18,
     [(4, 2), (12, 2), (4, 6), (12, 6)], [(2, 4), (6, 4)], [(4, 4), (4, 5), (12, 4), (12, 5)]),
]  # fmt: skip
ONE = {"float16": 0x3C00, "bfloat16": 0x3F80, "tfloat32": 0x3F800000, "int8": 1, "uint8": 1,
       "float8_e4m3fn": 0x38, "float8_e5m2": 0x3C, "float64": 0x3FF0000000000000}  # fmt: skip
BITS = {"float16": "u2", "bfloat16": "u2", "tfloat32": "u4", "int8": "u1", "uint8": "u1",
        "float8_e4m3fn": "u1", "float8_e5m2": "u1", "float64": "u8"}  # fmt: skip
SUMS = {"float32": np.float32, "int32": np.int32, "float64": np.float64}


@pytest.mark.few(1)
@pytest.mark.parametrize(("shape", "a", "b", "c", "lane", "a_at", "b_at", "c_at"), FRAGMENTS)
def test_the_fragments_of_mma(shape, a, b, c, lane, a_at, b_at, c_at):
    """A single 1 in A lights up its row, with a single 1 in B the element where they meet."""
    made = I.mma_shape(shape, a, b, c)
    counts = (made.m * made.k // 32, made.k * made.n // 32, made.m * made.n // 32)
    assert (len(a_at), len(b_at), len(c_at)) == counts
    meetings = [(i, j) for i, p in enumerate(a_at) for j, q in enumerate(b_at) if p[1] == q[0]]
    assert meetings
    cases = [*((i, None) for i in range(counts[0])), *meetings]
    x = np.zeros((len(cases), 32, counts[0]), BITS[a])
    y = np.zeros((len(cases), 32, counts[1]), BITS[b])
    for number, (i, j) in enumerate(cases):
        x[number, lane, i] = ONE[a]
        y[(number, ...) if j is None else (number, lane, j)] = ONE[b]
    d = np.zeros((len(cases), 32, counts[2]), SUMS[c])
    sizes = [v.nbytes // len(cases) // 32 for v in (x, y, d)]
    product = I.mma(shape, a, b, c)
    body = f"""
      int t = blockIdx.x * 32 + threadIdx.x;
      {product.name}(d + t * {sizes[2]}, x + t * {sizes[0]}, y + t * {sizes[1]});"""
    arguments = {"x": x.view("u1"), "y": y.view("u1"), "d": d.view("u1")}
    run(body, arguments, [product], grid=len(cases))
    for number, (i, j) in enumerate(cases):
        row = a_at[i][0]
        if j is None:
            assert [bool(v) for v in d[number, lane]] == [place[0] == row for place in c_at]
            continue
        column = b_at[j][1]
        (where,) = np.argwhere(d[number])
        assert tuple(where) == (4 * (row % 8) + column // 2, 2 * (row // 8) + column % 2)


# Of lane 18 for mma.m16n8k64 of 4-bit floats: (row, first and last of eight columns) of registers
# of A, (first and last of eight rows, column) of those of B; who gives the factors of rows 0 to 15
# of A and of columns 0 to 7 of B by selector (CUTLASS f5c79030, cute/atom/mma_traits_sm120.hpp:
# ALayout, BLayout, SFALayout, SFBLayout of SM120_16x8x64_TN_VS; TileLang a35008a,
# mma_sm120_macro_generator.py: sfa_selector_source_lane, sfb_selector_source_lane). Four factors
# are four bytes, the first one lowest.
SCALED_A = [(4, 16, 23), (12, 16, 23), (4, 48, 55), (12, 48, 55)]
SCALED_B = [(16, 23, 4), (48, 55, 4)]
FACTORS_OF_A = {
    0: [0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29],
    1: [2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31],
}
FACTORS_OF_B = {
    0: [0, 4, 8, 12, 16, 20, 24, 28], 1: [1, 5, 9, 13, 17, 21, 25, 29],
    2: [2, 6, 10, 14, 18, 22, 26, 30], 3: [3, 7, 11, 15, 19, 23, 27, 31],
}  # fmt: skip
FOUR_BITS = {0.5: 1, 1: 2, 2: 4, 4: 6}  # of float4_e2m1fn (OCP Microscaling Formats 1.0, table 5)


NVFP4 = ("float4_e2m1fn", "float4_e2m1fn", "float8_e4m3fn")
MXFP4 = ("float4_e2m1fn", "float4_e2m1fn", "float8_e8m0fnu")
MXFP8 = ("float8_e4m3fn", "float8_e4m3fn", "float8_e8m0fnu")


def scaled_products(x, y, fa, fb, selectors=(0, 0), kinds=NVFP4, first=0):
    """Return the sums [case, 32, 4] of cases of registers and factors of each lane."""
    d = np.zeros((len(x), 32, 4), np.float32)
    product = I.mma_scaled(*kinds, *selectors, first)
    body = f"""
      int t = blockIdx.x * 32 + threadIdx.x;
      {product.name}(d + t * 16, x + t * 16, y + t * 8, fa[t], fb[t]);"""
    arguments = {"x": x.view("u1"), "y": y.view("u1"), "fa": fa, "fb": fb, "d": d.view("u1")}
    run(body, arguments, [product], grid=len(x))
    return d


def at(row, column):
    """Return (lane, register) of an element of the sums (PTX ISA 9.1, 9.7.14.5; SM80_16x8_Row)."""
    return 4 * (row % 8) + column // 2, 2 * (row // 8) + column % 2


def test_the_fragments_of_products_with_factors():
    """A single 1 in A lights up its row, with a single 1 in B the element where they meet."""
    ones = np.uint32(0x38383838)  # 1.0 four times
    cases = [(i, None) for i in range(32)] + [(8 * r + e, 8 * (r // 2) + e)
                                              for r in range(4) for e in (0, 3, 7)]  # fmt: skip
    x, y = np.zeros((len(cases), 32, 4), "u4"), np.zeros((len(cases), 32, 2), "u4")
    for number, (i, j) in enumerate(cases):
        x[number, 18, i // 8] = FOUR_BITS[1] << 4 * (i % 8)
        if j is None:
            y[number] = 0x22222222
        else:
            y[number, 18, j // 8] = FOUR_BITS[1] << 4 * (j % 8)
    factors = np.full((len(cases), 32), ones)
    d = scaled_products(x, y, factors, factors)
    for number, (i, j) in enumerate(cases):
        row, first, last = SCALED_A[i // 8]
        column = first + i % 8
        assert column <= last
        if j is None:
            assert {tuple(w) for w in np.argwhere(d[number])} == {at(row, c) for c in range(8)}
            continue
        start, _, right = SCALED_B[j // 8]
        assert start + j % 8 == column
        (where,) = np.argwhere(d[number])
        assert tuple(where) == at(row, right)


@pytest.mark.few(1)
@pytest.mark.parametrize("selectors", [(0, 0), (1, 1), (0, 2), (1, 3)])
def test_who_gives_the_factors(selectors):
    """A factor of 2 in place of 1 adds what it is multiplied by: 16 elements of a row or column."""
    values = list(FOUR_BITS)  # of B along K, 16 elements each
    for side, lanes in ((0, FACTORS_OF_A[selectors[0]]), (1, FACTORS_OF_B[selectors[1]])):
        cases = [(lane, byte) for lane in range(32) for byte in range(4)]
        x = np.full((len(cases), 32, 4), 0x22222222, "u4")
        y = np.zeros((len(cases), 32, 2), "u4")
        for lane in range(32):  # lanes q = 0, 1 of four hold elements 0 to 15 and 32 to 47
            for register in range(2):
                code = FOUR_BITS[values[lane % 4 // 2 + 2 * register]]
                y[:, lane, register] = code * 0x11111111
        given = [np.full((len(cases), 32), 0x38383838, "u4") for _ in range(2)]
        for number, (lane, byte) in enumerate(cases):
            given[side][number, lane] += 8 << 8 * byte  # 0x40: 2.0
        more = scaled_products(x, y, *given, selectors) - 16 * sum(values)
        for number, (lane, byte) in enumerate(cases):
            expected = np.zeros((32, 4), np.float32)
            if lane in lanes:
                index = lanes.index(lane)
                for other in range(16 if side else 8):
                    place = at(other, index) if side else at(index, other)
                    expected[place] = 16 * values[byte]
            np.testing.assert_array_equal(more[number], expected)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kinds", "first", "count", "one"), [(MXFP4, 2, 2, 0x22222222), (MXFP8, 3, 1, 0x38383838)]
)
def test_which_bytes_are_factors(kinds, first, count, one):
    """Of factors of 2 ** (byte - 127) an instruction takes two, or one, from a byte of words on.

    PTX ISA 9.1, 9.7.14.5.14: .scale_vec::2X and ::1X; which lanes as above (for m16n8k32 CUTLASS:
    SM120_16x8x32_TN_VS, the same SFALayout and SFBLayout).
    """
    depth = 64 if count == 2 else 32
    for side, lanes in ((0, FACTORS_OF_A[1]), (1, FACTORS_OF_B[2])):
        cases = [(lane, byte) for lane in range(32) for byte in range(4)]
        x, y = np.full((len(cases), 32, 4), one, "u4"), np.full((len(cases), 32, 2), one, "u4")
        given = [np.full((len(cases), 32), 0x7F7F7F7F, "u4") for _ in range(2)]
        for number, (lane, byte) in enumerate(cases):
            given[side][number, lane] += 2 << 8 * byte  # 2 ** 2 in place of 1
        more = scaled_products(x, y, *given, (1, 2), kinds, first) - depth
        for number, (lane, byte) in enumerate(cases):
            expected = np.zeros((32, 4), np.float32)
            if lane in lanes and first <= byte < first + count:
                index = lanes.index(lane)
                for other in range(16 if side else 8):
                    place = at(other, index) if side else at(index, other)
                    expected[place] = 3 * depth // count
            np.testing.assert_array_equal(more[number], expected)


def test_factors_are_not_negative():
    """What the instruction makes of a set top bit is not defined; lanes not asked may have it."""
    x, y = np.full((1, 32, 4), 0x22222222, "u4"), np.full((1, 32, 2), 0x22222222, "u4")
    factors = np.full((1, 32), 0xB8B8B8B8, "u4")
    factors[0, FACTORS_OF_A[1]] = 0x38383838
    assert (scaled_products(x, y, factors, factors, (1, 2)) == 64).all()
    with pytest.raises(EmulationError, match="top bit set"):
        scaled_products(x, y, factors, factors)


# Of lane 17, in the first quad pair: rows of A and columns of B of its elements by layout, and what
# it holds of C (PTX ISA 9.1, 9.7.14.5.1; cute: SM70_8x8x4 TN and NT, thread 5 of eight).
QUAD_ROWS = {"row": [5, 5, 5, 5], "col": [4, 5, 6, 7]}
QUAD_SUMS = {
    "float32": [(5, 0), (5, 1), (7, 0), (7, 1), (5, 4), (5, 5), (7, 4), (7, 5)],
    "float16": [(5, 0), (5, 1), (5, 2), (5, 3), (5, 4), (5, 5), (5, 6), (5, 7)],
}


@pytest.mark.few(1)
@pytest.mark.parametrize("sums", QUAD_SUMS)
@pytest.mark.parametrize("layouts", [("row", "col"), ("col", "row")])
def test_the_fragments_of_quad_pairs(sums, layouts):
    x = np.full((8, 32, 4), ONE["float16"], np.uint16)
    y = x.copy()
    for i in range(4):
        x[i], y[4 + i] = 0, 0
        x[i, 17, i] = y[4 + i, 17, i] = ONE["float16"]
    d = np.zeros((8, 32, 8), sums)
    product = I.mma("m8n8k4", "float16", "float16", sums, *layouts)
    body = f"""
      int t = blockIdx.x * 32 + threadIdx.x;
      {product.name}(d + t * {d.itemsize * 8}, x + t * 8, y + t * 8);"""
    arguments = {"x": x.view("u1"), "y": y.view("u1"), "d": d.view("u1")}
    run(body, arguments, [product], grid=8)
    columns = QUAD_ROWS["row" if layouts[1] == "col" else "col"]
    for i in range(4):
        row, column = QUAD_ROWS[layouts[0]][i], columns[i]
        assert [bool(v) for v in d[i, 17]] == [place[0] == row for place in QUAD_SUMS[sums]]
        assert [bool(v) for v in d[4 + i, 17]] == [place[1] == column for place in QUAD_SUMS[sums]]


def test_who_holds_the_sums_of_warps():
    held = accumulators(16, 8, 16, (1, 1), 32)
    known = {(5, 0): (1, 2), (5, 1): (1, 3), (5, 2): (9, 2), (5, 3): (9, 3), (31, 3): (15, 7)}
    for owner, place in known.items():
        assert tuple(map(int, held.owner(place))) == owner


def test_who_reads_which_rows_of_tensor_memory():
    """Row m of 128 is lane m; of 64, 16 rows are in each quarter (layouts D and F)."""
    whole, half = spread_rows(128, 32, 128), spread_rows(64, 32, 128)
    for row in (0, 15, 16, 127):
        assert int(whole.owner((row, 3))[0]) == row
    # 16x256b: a warp has the 16 lanes from 32 * warp on; lane / 4 and 2 * (lane % 4) of mma's C.
    known = {
        (0, 0): (0, 0), (15, 1): (28, 3), (16, 0): (32, 0), (17, 3): (37, 1), (63, 31): (127, 15),
    }  # fmt: skip
    for place, owner in known.items():
        assert tuple(map(int, half.owner(place))) == owner
