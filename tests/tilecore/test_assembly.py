"""The machine code of products: innermost loops multiply in registers and never touch the stack."""

import re

import pytest

import tilecore.language as T
from tilecore import kernels
from tilecore.codegen.llvm import generate
from tilecore.compiler import lower
from tilecore.target import parse_target

VNNI = "avx512+avx512_bf16+avx512_vnni"
CLIENT = "avx2+avx_vnni"
TILES = "avx512+amx_bf16+amx_int8+amx_tile"
MULTIPLY = re.compile(r"\s(vfmadd\w+ps|vpmaddwd|vpdpbusd|vdpbf16ps|tdp\w+)\s")


def product(dtype, accum, depth):
    """A product of whole blocks of 56 x 64 x depth."""

    @T.prim_func
    def main(
        A: T.Tensor((112, 2 * depth), dtype),
        B: T.Tensor((2 * depth, 128), dtype),
        C: T.Tensor((112, 128), accum),
    ):
        with T.Kernel(2, 2, threads=128) as (bx, by):
            a = T.alloc_shared((56, depth), dtype)
            b = T.alloc_shared((depth, 64), dtype)
            c = T.alloc_fragment((56, 64), accum)
            T.clear(c)
            for ko in T.Pipelined(2, num_stages=2):
                T.copy(A[by * 56, ko * depth], a)
                T.copy(B[ko * depth, bx * 64], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 56, bx * 64])

    return main


def assembly(target, func, **knobs):
    """Return the lines of the machine code."""
    chosen = parse_target(target)
    _, tir = lower(func, chosen, knobs)
    return generate(tir, chosen).inspect_source("asm").splitlines()


def innermost_loops(target, func, **knobs):
    """Return the instructions of every innermost loop that multiplies, one list per loop."""
    lines = assembly(target, func, **knobs)
    labels = {m[1]: i for i, line in enumerate(lines) if (m := re.match(r"(\.LBB\w+):", line))}
    jumps = ((i, re.match(r"\s+j\w+\s+(\.LBB\w+)", line)) for i, line in enumerate(lines))
    loops = [(labels[m[1]], i) for i, m in jumps if m and labels.get(m[1], i) < i]
    inner = [(a, b) for a, b in loops if not any(a <= c and d < b for c, d in loops)]
    bodies = [[x for x in lines[a:b] if x.startswith("\t") and x[1] != "."] for a, b in inner]
    return [body for body in bodies if any(MULTIPLY.search(x) for x in body)]


def multiplies(body):
    return [x for x in body if MULTIPLY.search(x)]


def uses_stack(body):
    """Return whether a loop has a stack reference; a %rbp that it moves is no frame pointer."""
    moves_rbp = any(re.search(r",\s*%rbp$", line) for line in body)
    frame = r"\(%rsp" if moves_rbp else r"\(%rsp|\(%rbp\)|\d\(%rbp\)"
    return any(re.search(frame, line) for line in body)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("target", "micro_m", "micro_n"),
    [("avx512", 14, 2), ("avx512", 8, 3), ("avx512", 28, 1), ("avx512", 0, 0),
     ("avx2", 6, 2), ("avx2", 4, 3), ("avx2", 0, 0)],
)  # fmt: skip
def test_float32_is_summed_in_registers(target, micro_m, micro_n):
    func = product("float32", "float32", 128)
    bodies = innermost_loops(target, func, micro_m=micro_m, micro_n=micro_n)
    rows, vectors = (micro_m or {"avx512": 14, "avx2": 6}[target]), micro_n or 2
    register = "zmm" if target == "avx512" else "ymm"
    groups = -(-56 // rows)  # nearly equal ones
    assert any(len(multiplies(body)) % (-(-56 // groups) * vectors) == 0 for body in bodies)
    for body in bodies:
        assert not uses_stack(body)
        results = {line.split(",")[-1].strip() for line in multiplies(body)}
        assert all(re.fullmatch(rf"%{register}\d+", r) for r in results)
        others = [x for x in body if not MULTIPLY.search(x) and "(" not in x]
        assert len(others) <= 6  # the loop's own, and broadcasts of what was loaded
        assert not any(re.search(r", \S*\(\S+\)$", x) for x in body)  # no stores


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["avx2", "avx512"])
def test_what_is_fetched_ahead_takes_no_address_of_its_own(target):
    attention = kernels.get("attention")
    shape = {"batch": 1, "heads": 2, "kv_heads": 2, "seq_q": 256, "seq_kv": 256, "dim": 64}
    func = attention.program(attention.parse_problem(shape), attention.default_config())
    bodies = [body for body in innermost_loops(target, func) if any("prefetch" in x for x in body)]
    assert bodies
    for body in bodies:
        assert len(multiplies(body)) >= 16
        assert not uses_stack(body)
        counters = [x for x in body if not re.search(r"\t(v\w+|prefetcht0)\t", x)]
        assert len(counters) <= 4


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("target", "dtype", "accum", "name"),
    [
        (VNNI, "bfloat16", "float32", "vdpbf16ps"),
        (TILES, "bfloat16", "float32", "tdpbf16ps"),
        (VNNI, "int8", "int32", "vpdpbusd"),
        (CLIENT, "int8", "int32", "vpdpbusd"),
        (CLIENT, "uint8", "int32", "vpdpbusd"),
        (TILES, "int8", "int32", "tdpbssd"),
        ("avx512", "int8", "int32", "vpmaddwd"),
        ("avx2", "int8", "int32", "vpmaddwd"),
    ],
)
def test_dots_are_summed_in_registers(target, dtype, accum, name):
    bodies = innermost_loops(target, product(dtype, accum, 2048))
    products = [body for body in bodies if len(multiplies(body)) >= 4]
    assert products
    for body in products:
        assert all(name in line for line in multiplies(body))
        assert not uses_stack(body)
        stores = [x for x in body if re.search(r"\s(vmov\w+|tilestored)\s+%\w+, .*\(", x)]
        assert not stores


@pytest.mark.few(1)
@pytest.mark.parametrize(("micro_m", "micro_n"), [(6, 2), (4, 3), (0, 0)])
def test_products_of_bytes_on_client_cpus_take_registers_of_256_bits(micro_m, micro_n):
    func = product("int8", "int32", 2048)
    bodies = innermost_loops(CLIENT, func, micro_m=micro_m, micro_n=micro_n)
    products = [body for body in bodies if any("vpbroadcastd" in line for line in body)]
    vectors, rows = micro_n or 2, micro_m or 6
    groups = -(-56 // rows)
    assert {len(multiplies(body)) for body in products} >= {-(-56 // groups) * vectors}
    for body in products:
        assert all(line.startswith("\t{vex}\tvpdpbusd\t") for line in multiplies(body))
        assert all(re.fullmatch(r"%ymm\d+", x.split()[-1]) for x in multiplies(body))
        assert not uses_stack(body)
        assert not any(re.search(r", \S*\(\S+\)$", x) for x in body)  # no stores


@pytest.mark.parametrize(("rows", "passing"), [(32, 0), (512, 2)])
def test_one_operand_of_tiles_passes_by_the_l1_cache(rows, passing):
    """Of 16 KiB of b and all rows of a, what is used once per panel goes past L1 if it is large."""

    @T.prim_func
    def main(
        A: T.Tensor((rows, 256), "bfloat16"),
        B: T.Tensor((256, 32), "bfloat16"),
        C: T.Tensor((rows, 32), "bfloat16"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((rows, 256), "bfloat16")
            b = T.alloc_shared((256, 32), "bfloat16")
            c = T.alloc_fragment((rows, 32), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True)
            T.copy(c, C)

    lines = assembly(TILES, main)
    products = len(multiplies(lines)) // 4  # of 2 x 2 tiles
    assert sum("\ttileloaddt1\t" in x for x in lines) == passing * products
    assert sum("\ttileload" in x for x in lines) == 4 * products > 0


def test_rows_of_b_are_multiplied_in_pairs_where_they_lie():
    gemm = kernels.get("gemm")
    problem = gemm.parse_problem({"m": 8, "n": 128, "k": 512, "dtype": "bfloat16"})
    config = {**gemm.default_config(), "block_M": 8, "block_N": 128, "block_K": 512}
    bodies = innermost_loops(VNNI, gemm.program(problem, config), **{**config, "pack_b": "none"})
    body = max(bodies, key=lambda b: len(multiplies(b)))
    assert all("vdpbf16ps" in line for line in multiplies(body))
    assert len(multiplies(body)) % (8 // 2 * 8) == 0  # pairs of a pass, rows of a


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [8, 16])
def test_sums_of_some_rows_read_what_all_columns_share_where_it_lies(rows, dtype):
    """LLVM kept 8 elements of each row for the loop over columns, most of them on the stack."""
    gemm = kernels.get("gemm")
    problem = gemm.parse_problem({"m": rows, "n": 128, "k": 512, "dtype": dtype})
    config = {**gemm.default_config(), "block_M": rows, "block_N": 128, "block_K": 512}
    bodies = innermost_loops(VNNI, gemm.program(problem, config), **{**config, "pack_b": "none"})
    body = max(bodies, key=lambda b: len(multiplies(b)))
    assert not any(re.search(r"\(%rsp\).*%zmm|%zmm.*\(%rsp\)", line) for line in body)


@pytest.mark.parametrize(
    ("target", "dtype", "name", "streams"),
    [
        ("avx2", "float32", "vfmadd", 2),
        ("avx512", "float32", "vfmadd", 6),
        (VNNI, "bfloat16", "vdpbf16ps", 6),
    ],
)
def test_few_rows_fetch_every_line_of_the_next_ones_of_b_once(target, dtype, name, streams):
    gemm = kernels.get("gemm")
    problem = gemm.parse_problem({"m": 4, "n": 96, "k": 512, "transpose_b": True, "dtype": dtype})
    config = {**gemm.default_config(), "block_M": 4, "block_N": 96, "block_K": 512}
    bodies = innermost_loops(target, gemm.program(problem, config), **config)
    body = max(bodies, key=lambda b: len(multiplies(b)))
    vectors = 2 if target == "avx2" else 1  # in a line
    assert len(multiplies(body)) == 4 * streams * vectors
    assert all(name in line for line in multiplies(body))
    assert sum("prefetcht1" in line for line in body) == streams
    assert not uses_stack(body)


@pytest.mark.few(1)
@pytest.mark.parametrize(("rows", "is_fetched"), [(4, True), (16, False)])
def test_sums_of_few_rows_fetch_what_the_next_pass_reads(rows, is_fetched):
    gemm = kernels.get("gemm")
    problem = gemm.parse_problem({"m": rows, "n": 256, "k": 64})
    config = {"block_M": 32, "block_N": 256, "block_K": 64, "micro_m": 4, "micro_n": 2}
    config = {**gemm.default_config(), **config, "pack_b": "none"}
    lines = assembly("avx512", gemm.program(problem, config), **config)
    assert any("prefetcht1" in line for line in lines) == is_fetched
