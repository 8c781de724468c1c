"""Matrix instructions on the emulator against NumPy, laid out as in the PTX manual's tables."""

import ml_dtypes
import numpy as np
import pytest

from tests.tilecore.cuda.catalog import mma_forms
from tests.tilecore.cuda.text_kernels import Kernel, pointer, run, source
from tilecore.emulator import EARLY, LATE, TensorMap, build
from tilecore.lowering.cuda import instructions as I

NUMPY = {
    "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "tfloat32": np.float32,
    "float32": np.float32, "float64": np.float64, "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2, "int8": np.int8, "uint8": np.uint8, "int32": np.int32,
}  # fmt: skip
WIDTH = {"float16": 2, "bfloat16": 2, "tfloat32": 4, "float64": 8, "float8_e4m3fn": 1,
         "float8_e5m2": 1, "int8": 1, "uint8": 1}  # fmt: skip


def numbers(rng, dtype, shape):
    kind = NUMPY[dtype]
    if dtype.startswith(("int", "uint")):
        return rng.integers(0 if dtype[0] == "u" else -9, 10, shape).astype(kind)
    values = rng.standard_normal(shape)
    if dtype == "tfloat32":  # numbers of 10 bits: those the tensor cores read
        values = values.astype(np.float16)
    return values.astype(kind)


def a_place(lane, i, width, m):
    """Row and column of element ``i`` of A (PTX ISA, figures of the fragments of .mma)."""
    group, t = lane // 4, lane % 4
    if m == 8:
        each = max(1, 4 // width)
        return group, t * each + i % each + i // each * 4 * each
    if width == 8:
        return group + (8 if i % 2 else 0), t + i // 2 * 4
    each = 4 // width
    row = group + (8 if i // each % 2 else 0)
    return row, t * each + i % each + (4 * each if i // each >= 2 else 0)


def b_place(lane, i, width):
    group, t = lane // 4, lane % 4
    if width == 8:
        return t + 4 * i, group
    each = 4 // width
    return t * each + i % each + i // each * 4 * each, group


def c_place(lane, i):
    return lane // 4 + (8 if i >= 2 else 0), lane % 4 * 2 + i % 2


FORMS = [
    form for form in mma_forms()
    if "int4" not in form[1] + form[2] and form[:2] != ("m8n8k4", "float16")
]  # fmt: skip


def test_mma_of_every_form():
    instructions = [I.mma(*form) for form in FORMS]
    kernels = [
        Kernel(
            f"k{n}",
            f"unsigned char *x = a{n} + threadIdx.x * {a}, *y = b{n} + threadIdx.x * {b};\n"
            f"{i.name}(d{n} + threadIdx.x * {d}, x, y);",
            tuple(pointer(f"{x}{n}", "unsigned char") for x in "abd"),
        )
        for n, (i, form) in enumerate(zip(instructions, FORMS, strict=True))
        for a, b, d in [_bytes(form)]
    ]
    rng = np.random.default_rng(0)
    arguments, expected = {}, []
    for n, (shape, a_type, b_type, c_type) in enumerate(FORMS):
        s = I.mma_shape(shape, a_type, b_type, c_type)
        a, b = numbers(rng, a_type, (s.m, s.k)), numbers(rng, b_type, (s.k, s.n))
        c = numbers(rng, c_type, (s.m, s.n))
        product = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
        width = WIDTH[a_type]
        a_parts = np.empty((32, s.m * s.k // 32), a.dtype)
        b_parts = np.empty((32, s.k * s.n // 32), b.dtype)
        c_parts = np.empty((32, s.m * s.n // 32), c.dtype)
        for lane in range(32):
            for i in range(a_parts.shape[1]):
                a_parts[lane, i] = a[a_place(lane, i, width, s.m)]
            for i in range(b_parts.shape[1]):
                b_parts[lane, i] = b[b_place(lane, i, width)]
            for i in range(c_parts.shape[1]):
                c_parts[lane, i] = c[c_place(lane, i)]
        arguments |= {f"a{n}": a_parts, f"b{n}": b_parts, f"d{n}": c_parts}
        expected.append(product)
    build(source(kernels, instructions)).run(arguments)
    for n, (form, product) in enumerate(zip(FORMS, expected, strict=True)):
        found = arguments[f"d{n}"]
        tolerance = 0 if form[3] == "int32" else 2e-2 if form[3] == "float16" else 1e-5
        for lane in range(32):
            for i in range(found.shape[1]):
                want = product[c_place(lane, i)]
                assert abs(float(found[lane, i]) - want) <= tolerance * max(1, abs(want)), form


def _bytes(form):
    _, a, _, c = form
    s = I.mma_shape(*form)
    size = {"float32": 4, "float16": 2, "float64": 8, "int32": 4}[c]
    return s.m * s.k * WIDTH[a] // 32, s.k * s.n * WIDTH[a] // 32, s.m * s.n * size // 32


@pytest.mark.few(1)
@pytest.mark.parametrize("c_type", ["float32", "float16"])
@pytest.mark.parametrize(("a_layout", "b_layout"), [("row", "col"), ("col", "row")])
def test_mma_of_quads(c_type, a_layout, b_layout):
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((4, 8, 4)).astype("f2"), rng.standard_normal((4, 4, 8)).astype("f2")
    x, y, d = np.empty((32, 4), "f2"), np.empty((32, 4), "f2"), np.zeros((32, 8), c_type)
    for lane in range(32):
        quad, t, high = lane % 16 // 4, lane % 4, 4 * (lane >= 16)
        for i in range(4):
            x[lane, i] = a[quad, t + high, i] if a_layout == "row" else a[quad, i + high, t]
            y[lane, i] = b[quad, i, t + high] if b_layout == "col" else b[quad, t, i + high]
    product = I.mma("m8n8k4", "float16", "float16", c_type, a_layout, b_layout)
    body = f"{product.name}(d + threadIdx.x * 8, x + threadIdx.x * 4, y + threadIdx.x * 4);"
    run(body, {"x": x, "y": y, "d": d}, [product])
    for lane in range(32):
        quad, high = lane % 16 // 4, 4 * (lane >= 16)
        for i in range(8):
            row, column = lane % 4 + high, i
            if c_type == "float32":
                row, column = (lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1)
            want = a[quad, row].astype("f8") @ b[quad][:, column].astype("f8")
            assert abs(d[lane, i] - want) < 0.02


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_and_stmatrix(count, transposed):
    a = np.arange(count * 64, dtype=np.uint16).reshape(count, 8, 8)
    fragments, back = np.zeros((32, count, 2), np.uint16), np.zeros_like(a)
    ld, st = I.ldmatrix(count, transposed), I.stmatrix(count, transposed)
    rows = min(32, 8 * count)
    body = f"""
      int t = threadIdx.x; unsigned r[{count}];
      if (t < {rows}) ((uint4*)smem)[t] = ((uint4*)a)[t];
      __syncthreads();
      {ld.name}(r, smem + t % {rows} * 16);
      for (int i = 0; i < {count}; ++i) ((unsigned*)fragments)[t * {count} + i] = r[i];
      {st.name}(smem + 1024 + t % {rows} * 16, r);
      __syncthreads();
      if (t < {rows}) ((uint4*)back)[t] = ((uint4*)(smem + 1024))[t];"""
    run(body, {"a": a, "fragments": fragments, "back": back}, [ld, st], shared_bytes=2048)
    seen = a.transpose(0, 2, 1) if transposed else a
    for lane in range(32):
        expected = seen[:, lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2]
        np.testing.assert_array_equal(fragments[lane], expected)
    np.testing.assert_array_equal(back, a)


WGMMA = [
    ("float16", "float32", "k", "k", 128), ("float16", "float16", "k", "n", 128),
    ("bfloat16", "float32", "m", "n", 128), ("bfloat16", "float32", "k", "k", 64),
    ("float16", "float32", "m", "k", 64), ("float16", "float32", "k", "n", 32),
    ("tfloat32", "float32", "k", "k", 128), ("int8", "int32", "k", "k", 128),
    ("float8_e4m3fn", "float32", "k", "k", 32), ("float8_e5m2", "float16", "k", "k", 64),
]  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize(("dtype", "c_type", "a_major", "b_major", "swizzle"), WGMMA)
@pytest.mark.parametrize("in_registers", [False, True])
def test_wgmma(dtype, c_type, a_major, b_major, swizzle, in_registers):
    """D = A B over one step of K, operands brought by TMA with the swizzle of the descriptor."""
    if in_registers and a_major == "m":
        pytest.skip("A in registers has no major axis")
    rng = np.random.default_rng(2)
    n, size = 64, WIDTH[dtype]
    k = 32 // size
    atom = swizzle // size  # elements of a row that is swizzled
    a, b = numbers(rng, dtype, (64, k)), numbers(rng, dtype, (k, n))
    expected = a.astype(np.float64) @ b.astype(np.float64)

    def operand(matrix, is_mn_major):
        """Return tensor, box, and descriptor of a (K-major: mn x k) operand."""
        tensor = np.zeros((64, atom), matrix.dtype)
        if is_mn_major:
            return (
                np.ascontiguousarray(matrix.T),
                (k, atom),
                I.descriptor(swizzle, k * swizzle, 8 * swizzle),
            )
        tensor[:, :k] = matrix
        return tensor, (64, atom), I.descriptor(swizzle, 16, 8 * swizzle)

    a_tensor, a_box, a_descriptor = operand(a, a_major == "m")
    b_tensor, b_box, b_descriptor = operand(b.T, b_major == "n")
    registers = np.empty((128, 4 * 4 // size), a.dtype)
    each = 4 // size
    for t in range(128):
        for i in range(registers.shape[1]):
            row, column = a_place(t % 32, i, size, 16)
            registers[t, i] = a[16 * (t // 32) + row, column]
    d = np.zeros((128, 64 * n // 128), NUMPY[c_type])
    product = I.wgmma(
        n, dtype, dtype, c_type, a_in_registers=in_registers, a_major=a_major, b_major=b_major
    )
    tma = I.tma_load(2)
    used = [
        product, tma, a_descriptor, b_descriptor, I.barrier_init(), I.barrier_expect(),
        I.barrier_wait(), I.fence_barrier_init(), I.wgmma_fence(), I.wgmma_commit(),
        I.wgmma_wait(0),
    ]  # fmt: skip
    a_steps = a_tensor.shape[1] // a_box[1]
    b_steps = b_tensor.shape[1] // b_box[1]
    box_bytes = [int(np.prod(box)) * size for box in (a_box, b_box)]
    total = a_steps * box_bytes[0] + b_steps * box_bytes[1]
    left = "registers + threadIdx.x * 16" if in_registers else f"{a_descriptor.name}(smem)"
    body = f"""
      unsigned char* bar = smem + 32768;
      if (threadIdx.x == 0) {{
        tc_barrier_init(bar, 1); tc_fence_barrier_init(); tc_barrier_expect(bar, {total});
        for (int i = 0; i < {a_steps}; ++i)
          tc_tma_load_2d(smem + i * {box_bytes[0]}, (unsigned long long)&a, bar, i * {a_box[1]}, 0);
        for (int i = 0; i < {b_steps}; ++i)
          tc_tma_load_2d(smem + 16384 + i * {box_bytes[1]}, (unsigned long long)&b, bar,
                         i * {b_box[1]}, 0);
      }}
      __syncthreads();
      tc_barrier_wait(bar, 0);
      unsigned acc[{d.nbytes // 128 // 4}];
      tc_wgmma_fence();
      {product.name}(acc, {left}, {b_descriptor.name}(smem + 16384), 0);
      tc_wgmma_commit();
      tc_wgmma_wait_0();
      for (int i = 0; i < {d.nbytes // 128 // 4}; ++i)
        ((unsigned*)d)[threadIdx.x * {d.nbytes // 128 // 4} + i] = acc[i];"""
    arguments = {
        "a": TensorMap(a_tensor, a_box, swizzle), "b": TensorMap(b_tensor, b_box, swizzle),
        "d": d.view(np.uint8), "registers": registers.view(np.uint8),
    }  # fmt: skip
    run(body, arguments, used, threads=128, shared_bytes=32784, schedule=LATE)
    assert each
    tolerance = 0 if c_type == "int32" else 2e-2 if c_type == "float16" else 1e-5
    for t in range(128):
        for i in range(d.shape[1]):
            row = 16 * (t // 32) + t % 32 // 4 + (8 if i // 2 % 2 else 0)
            column = i // 4 * 8 + t % 4 * 2 + i % 2
            want = expected[row, column]
            assert abs(float(d[t, i]) - want) <= tolerance * max(1, abs(want))


def test_products_accumulate_in_order_under_early_delivery():
    d = np.zeros((128, 4), np.float32)
    product, keep = I.wgmma(8, "float16", "float16"), I.descriptor(0, 128, 256)
    body = f"""
      for (int i = threadIdx.x; i < 2048; i += 128) ((half*)smem)[i] = half(1.0f);
      tc_fence_async(); __syncthreads();
      float acc[4] = {{5, 5, 5, 5}};
      tc_wgmma_fence();
      {product.name}(acc, {keep.name}(smem), {keep.name}(smem), 0);
      {product.name}(acc, {keep.name}(smem), {keep.name}(smem), 1);
      tc_wgmma_commit(); tc_wgmma_wait_0();
      for (int i = 0; i < 4; ++i) d[threadIdx.x * 4 + i] = acc[i];"""
    used = [product, keep, I.wgmma_fence(), I.wgmma_commit(), I.wgmma_wait(0), I.fence_async()]
    for schedule in (LATE, EARLY):
        run(body, {"d": d}, used, schedule, threads=128, shared_bytes=4096)
        assert (d == 32).all()
