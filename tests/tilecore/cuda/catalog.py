"""Instructions of every family, for tests that look at all of them."""

from tilecore.ir.expr import ROUNDED
from tilecore.lowering.cuda import instructions as I
from tilecore.lowering.cuda.instructions import matrix

HALVES = ("float16", "bfloat16")
TENSOR_FORMS = (
    ("float16", "float32", "k", "k"), ("float16", "float16", "m", "k"),
    ("bfloat16", "float32", "k", "n"), ("tfloat32", "float32", "k", "k"),
    ("float8_e4m3fn", "float32", "k", "k"), ("float8_e5m2", "float16", "k", "k"),
    ("int8", "int32", "m", "n"), ("uint8", "int32", "k", "k"),
)  # fmt: skip
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


def mma_forms():
    for operands, sums, shapes in matrix.FAMILIES:
        for shape in shapes:
            for c in sums:
                for a in operands:
                    for b in operands:
                        yield shape, a, b, c


def wgmma_forms():
    yield 256, "bfloat16", "bfloat16", "float32", False, "k", "n"
    for n in (8, 64):
        for a_in_registers in (False, True):
            for a in HALVES:
                for a_major in ("k",) if a_in_registers else ("k", "m"):
                    for b_major in ("k", "n"):
                        yield n, a, a, "float32", a_in_registers, a_major, b_major
            yield n, "float16", "float16", "float16", a_in_registers, "k", "k"
            yield n, "tfloat32", "tfloat32", "float32", a_in_registers, "k", "k"
            for a, b in (("int8", "int8"), ("uint8", "int8")):
                yield n, a, b, "int32", a_in_registers, "k", "k"
            for a in FLOAT8:
                yield n, a, "float8_e4m3fn", "float32", a_in_registers, "k", "k"


def catalog():
    """Return one instruction of every form."""
    made = [
        *(I.mma(*form) for form in mma_forms()),
        *(I.mma("m8n8k4", "float16", "float16", c, x, y) for c in ("float16", "float32")
          for x in ("row", "col") for y in ("row", "col")),
        *(I.mma_scaled(*2 * ["float4_e2m1fn"], "float8_e4m3fn", x, y)
          for x in range(2) for y in range(4)),
        *(I.mma_scaled(*2 * ["float4_e2m1fn"], "float8_e8m0fnu", 1, 3, n) for n in (0, 2)),
        *(I.mma_scaled(a, b, "float8_e8m0fnu", 1, 3, n)
          for a in FLOAT8 for b in FLOAT8 for n in range(4)),
        *(I.ldmatrix(n, t) for n in (1, 2, 4) for t in (False, True)),
        *(I.stmatrix(n, t) for n in (1, 2, 4) for t in (False, True)),
        *(I.wgmma(n, a, b, c, a_in_registers=r, a_major=x, b_major=y)
          for n, a, b, c, r, x, y in wgmma_forms()),
        *(I.descriptor(s, 16, 1024) for s in (0, 32, 64, 128)),
        *(I.tensor_mma(128, a, a, c, a_major=x, b_major=y) for a, c, x, y in TENSOR_FORMS),
        I.tensor_mma(128, "bfloat16", "bfloat16", a_in_tensor_memory=True, b_major="n"),
        I.tensor_mma(64, "float16", "float16", m=64), I.tensor_load(8, "16x256b"),
        I.tensor_store(8, "16x256b"), I.tensor_keep(32), I.tensor_keep(32, "int32"),
        *(I.tensor_descriptor(s, 16, 1024) for s in (0, 32, 64, 128)),
        *(f(n) for n in (32, 128) for f in (I.tensor_allocate, I.tensor_free, I.tensor_load,
                                            I.tensor_store)),
        *(I.tensor_mma(64, a, a, c, a_major=x, b_major=y, m=256, pair=True)
          for a, c, x, y in TENSOR_FORMS),
        I.tensor_mma(32, "float16", "float16", m=128, pair=True),
        I.tensor_mma(64, "bfloat16", "bfloat16", m=256, a_in_tensor_memory=True, pair=True),
        I.tensor_allocate(64, pair=True), I.tensor_free(64, pair=True),
        *(I.tensor_commit(m, p) for m in (False, True) for p in (False, True)),
        *(I.tensor_mma_scaled(n, a, b, "float8_e8m0fnu", a_major=x, b_major=y)
          for n, a, b, x, y in ((128, *FLOAT8, "k", "k"), (256, *FLOAT8[::-1], "m", "n"))),
        *(I.tensor_mma_scaled(64, *2 * ["float4_e2m1fn"], f)
          for f in ("float8_e4m3fn", "float8_e8m0fnu")),
        I.tensor_mma_scaled(64, *FLOAT8, "float8_e8m0fnu", pair=True), I.tensor_copy(pair=True),
        I.tensor_copy(), I.tensor_descriptor(0, 0, 128), I.tensor_wait_loads(),
        I.tensor_wait_stores(), I.tensor_fence(True), I.tensor_fence(False),
        I.wgmma_fence(), I.wgmma_commit(), I.wgmma_wait(0), I.wgmma_wait(1),
        I.wgmma_keep(128), I.wgmma_keep(64, "int32"), I.set_registers(24, False),
        I.set_registers(240, True),
        *(I.cp_async(n, None, z) for n in (4, 8, 16) for z in (False, True)),
        I.cp_async(16, False), I.cp_async_commit(), I.cp_async_wait(2), I.cp_async_arrive(),
        I.cp_async_arrive(True), I.bulk_load(), I.bulk_store(), I.bulk_commit(), I.bulk_wait(0),
        I.bulk_wait(1, True), *(I.tma_load(r, m) for r in range(1, 6) for m in (False, True)),
        *(I.tma_load(r, stays=True) for r in range(1, 6)), I.prefetch_map(),
        *(I.tma_load_pair(r) for r in range(1, 6)),
        *(I.tma_store(r) for r in range(1, 6)), *(I.tma_reduce(r) for r in range(1, 6)),
        I.tma_reduce(2, "max"),
        I.sync_threads(), I.sync_warp(), I.converge_warp(), I.bar_sync(), I.bar_arrive(),
        I.barrier_init(), I.barrier_invalidate(), I.barrier_arrive(), I.barrier_arrive_remote(),
        I.barrier_expect(), I.barrier_expect_only(), I.barrier_expect_remote(),
        I.barrier_wait(), I.barrier_wait("sm_80"),
        I.barrier_test(),
        I.fence_barrier_init(), I.fence_async(), I.fence_async(True),
        I.cluster_arrive(), I.cluster_wait(), I.cluster_rank(), I.cluster_address(),
        I.barrier_wait(of_cluster=True),
        *(I.cluster_load(t) for t in ("float32", "int32", "uint64")),
        *(I.thread_fence(s) for s in ("cta", "gpu", "sys")),
        *(I.shuffle(k, t) for k in ("xor", "down", "up", "idx")
          for t in ("int32", "uint32", "float32", "float64", "int64", *HALVES)),
        I.shuffle("xor", "float32", 8), I.shuffle_masked("xor", "float32"), I.vote("any"),
        I.vote("all"), I.vote("ballot"), I.vote_masked("ballot"), I.elect(),
        I.assume_below(), I.warp_index(), I.clock(),
        *(I.atomic(o, t) for o in ("add", "min", "max", "exchange")
          for t in ("int32", "uint32", "int64", "uint64", "float32", "float64", *HALVES)),
        *(I.atomic(o, t) for o in ("and", "or", "xor") for t in ("int32", "uint64", "int64")),
        I.atomic("inc", "uint32"), I.atomic("dec", "uint32"),
        *(I.add_neighbours(t, n) for t in ("float32", *HALVES) for n in (2, 4)),
        *(I.add_neighbours(t, 8) for t in HALVES),
        *(I.atomic_narrow(o, t) for o in ("add", "max", "or") for t in ("int8", "uint16")),
        *(I.load_ordered(t) for t in ("int32", "uint64", "float32", "float64")),
        *(I.pack(t) for t in HALVES), I.round_tfloat32(), I.extend_nibbles(),
        *(I.approximate(f) for f in ("exp2", "log2", "reciprocal", "rsqrt", "sqrt", "sin", "cos",
                                     "tanh")),
        *(I.fma_halves(t) for t in HALVES), I.masked_or(), I.pack_halves(),
        I.exact("float16"), I.exact("float32"),
        *(I.rounded(name, t) for name in ROUNDED for t in ("float32", "float64")),
    ]  # fmt: skip
    return {i.name: i for i in made}
