"""Hand-written TIR of pipelined matrix products, for tests of the emulator and the code generator.

``change`` takes the name of a seeded bug, see test_seeded_bugs.py.
"""

import functools

import tvm
from tvm import tirx as tir

from tilecore.lowering.cuda import instructions as I

VECTORIZED, UNROLLED, SERIAL = (
    tir.ForKind.VECTORIZED,
    tir.ForKind.UNROLLED,
    tir.ForKind.SERIAL,
)


def imm(value):
    return tir.IntImm("int32", value) if isinstance(value, int) else value


def run(instruction, *arguments):
    return tir.Evaluate(instruction.call(*(imm(a) for a in arguments)))


def pointer(buffer, *index):
    return tir.address_of(tir.BufferLoad(buffer, [imm(i) for i in index]))


def load(buffer, *index):
    return tir.BufferLoad(buffer, [imm(i) for i in index])


def store(buffer, value, *index):
    return tir.BufferStore(buffer, value, [imm(i) for i in index])


def loop(extent, body, kind=SERIAL, name="i"):
    var = tir.Var(name, "int32")
    return tir.For(var, imm(0), imm(extent), kind, body(var))


def block(*statements):
    present = [s for s in statements if s is not None]
    return present[0] if len(present) == 1 else tir.SeqStmt(present)


def when(condition, then, otherwise=None):
    return tir.IfThenElse(condition, then, otherwise)


def bind(name, extent, body):
    var = tir.Var(name.replace(".", "_"), "int32")
    axis = tir.IterVar(tvm.ir.Range(imm(0), imm(extent)), var, tir.IterVar.ThreadIndex, name)
    return tir.AttrStmt(axis, "thread_extent", imm(extent), body(var))


def local(size, dtype, name):
    return tir.decl_buffer((size,), dtype, name, scope="local")


def shared(size, dtype, name="S"):
    return tir.decl_buffer((size,), dtype, name, scope="shared.dyn", data_alignment=1024)


def static_shared(size, dtype, name):
    return tir.decl_buffer((size,), dtype, name, scope="shared", data_alignment=16)


def tensor_map(name):
    return tir.Var(name, tensor_map_type())


@functools.cache  # TVM reads the text of all modules to find a function's
def tensor_map_type():
    from tvm.script import tirx as T

    @T.prim_func
    def probe(M: T.TensorMap()):
        T.device_entry()

    return probe.params[0].ty


def gemm_sm80(m, n, k, bm=64, bn=64, bk=32, stages=3, change=""):
    """C (f16) = A (m x k) @ B (k x n): cp.async ring, ldmatrix, mma.sync; 4 warps of 32 x 32."""
    threads, mi, nj = 128, bm // 32, bn // 32
    a_chunks, b_chunks = bk // 8, bn // 8
    a_size, b_size = bm * bk, bk * bn
    a = tir.decl_buffer((m, k), "float16", "A")
    b = tir.decl_buffer((k, n), "float16", "B")
    c = tir.decl_buffer((m, n), "float16", "C")
    s = shared(stages * (a_size + b_size), "float16")
    acc, fa, fb = (
        local(mi * nj * 8, "float32", "acc"),
        local(4 * mi, "uint32", "fa"),
        local(4 * nj, "uint32", "fb"),
    )
    steps = k // bk

    def a_place(row, chunk):
        return row * bk + (chunk ^ (row // 2 % 4)) * 8

    def b_place(row, chunk):
        return row * bn + (chunk ^ (row % 8)) * 8

    def b_place_stored(row, chunk):
        return row * bn + (chunk | (row % 8)) * 8 if change == "swizzle" else b_place(row, chunk)

    def kernel(bx, by, tx):
        warp, lane = tx // 32, tx % 32
        row0, col0 = warp // 2 * (bm // 2), warp % 2 * (bn // 2)

        def fetch(slot, step):
            base = slot * (a_size + b_size)
            cp = I.cp_async(16)

            def a_part(i):
                at = tx + i * threads
                row, chunk = at // a_chunks, at % a_chunks
                return run(
                    cp,
                    pointer(s, base + a_place(row, chunk)),
                    pointer(a, by * bm + row, step * bk + chunk * 8),
                )

            def b_part(i):
                at = tx + i * threads
                row, chunk = at // b_chunks, at % b_chunks
                column = bx * bn + chunk * 8 + (8 if change == "global bounds" else 0)
                offset = 4 if change == "misaligned" else 0
                limit = a_size + b_size if change == "shared bounds" else 0
                return run(
                    cp,
                    pointer(s, base + a_size + b_place_stored(row, chunk) + offset + limit),
                    pointer(b, step * bk + row, column),
                )

            return block(
                loop(bm * a_chunks // threads, a_part, UNROLLED),
                loop(bk * b_chunks // threads, b_part, UNROLLED),
            )

        def compute(base, kk):
            def load_a(i):
                row = row0 + i * 16 + lane % 16
                return run(
                    I.ldmatrix(4),
                    pointer(fa, i * 4),
                    pointer(s, base + a_place(row, kk * 2 + lane // 16)),
                )

            def load_b(j):
                row, chunk = kk * 16 + lane % 16, (col0 + j * 16) // 8 + lane // 16
                return run(
                    I.ldmatrix(4, change != "not transposed"),
                    pointer(fb, j * 4),
                    pointer(s, base + a_size + b_place(row, chunk)),
                )

            product = I.mma("m16n8k16", "float16", "float16", "float32")

            def multiply(i):
                return loop(
                    nj,
                    lambda j: loop(
                        2,
                        lambda h: run(
                            product,
                            pointer(acc, (i * nj + j) * 8 + h * 4),
                            pointer(fa, i * 4),
                            pointer(fb, j * 4 + h * 2),
                        ),
                        UNROLLED,
                    ),
                    UNROLLED,
                )

            return block(
                loop(mi, load_a, UNROLLED), loop(nj, load_b, UNROLLED), loop(mi, multiply, UNROLLED)
            )

        def step(kt):
            ahead = kt + (stages - 1)
            late = change == "fetch before barrier"
            sync = None if change == "no barrier" else run(I.sync_threads())
            if change == "divergent barrier":
                sync = when(tx < 64, run(I.sync_threads()))
            fetch_next = when(ahead < steps, fetch(ahead % stages, ahead))
            wait = stages - 1 if change == "late wait" else stages - 2
            return block(
                run(I.cp_async_wait(wait)) if change != "no wait" else None,
                fetch_next if late else None,
                sync,
                None if late else fetch_next,
                run(I.cp_async_commit()) if change != "no commit" else None,
                loop(bk // 16, lambda kk: compute(kt % stages * (a_size + b_size), kk), UNROLLED),
            )

        def epilogue(i):
            def pair(x):
                j, h, r = x // 4, x // 2 % 2, x % 2
                index = (i * nj + j) * 8 + h * 4 + r * 2
                row = by * bm + row0 + i * 16 + r * 8 + lane // 4
                column = bx * bn + col0 + j * 16 + h * 8 + lane % 4 * 2
                return loop(
                    2,
                    lambda v: store(c, tir.Cast("float16", load(acc, index + v)), row, column + v),
                    VECTORIZED,
                )

            return loop(nj * 4, pair, UNROLLED)

        extra = None
        if change == "left in flight":
            extra = block(fetch(imm(0), imm(0)), run(I.cp_async_commit()))
        return block(
            tir.AllocBuffer(s), tir.AllocBuffer(acc), tir.AllocBuffer(fa), tir.AllocBuffer(fb),
            loop(
                mi * nj * 8, lambda i: store(acc, tir.FloatImm("float32", 0.0), i), UNROLLED
            ),
            loop(
                stages - 1,
                lambda i: block(fetch(i, i), run(I.cp_async_commit())),
                UNROLLED,
            ),
            loop(steps, step),
            loop(mi, epilogue, UNROLLED),
            extra,
        )  # fmt: skip

    body = bind(
        "blockIdx.x",
        n // bn,
        lambda bx: bind(
            "blockIdx.y",
            m // bm,
            lambda by: bind("threadIdx.x", threads, lambda tx: kernel(bx, by, tx)),
        ),
    )
    return tir.PrimFunc([a, b, c], body)


def gemm_sm90(m, n, k, bm=128, bn=128, bk=64, stages=2, change=""):
    """C (f16) = A (m x k) @ B (k x n): TMA ring with barriers, wgmma, TMA store.

    Warp 0 of warpgroup 0 loads; warpgroups 1 and 2 multiply 64 x bn each.
    """
    consumers = bm // 64
    threads, boxes = 128 * (consumers + 1), bn // 64
    a_size, b_size = bm * bk, bk * bn
    stage, steps, registers = a_size + b_size, k // bk, bn // 2
    a_map, b_map, c_map = (tensor_map(f"{x}_map") for x in "ABC")
    s = shared(stages * stage + bm * bn, "float16")
    full, empty = (static_shared(stages, "uint64", x) for x in ("full", "empty"))
    acc = local(registers, "float32", "acc")

    def kernel(bx, by, tx):
        group, lane = tx // 128, tx % 32
        expected = 2 * stage + (16 if change == "expects too much" else 0)

        def initialise(i):
            return block(
                run(I.barrier_init(), pointer(full, i), 1),
                run(I.barrier_init(), pointer(empty, i), consumers),
            )

        def produce(kt):
            slot, base = kt % stages, kt % stages * stage
            parity = (kt // stages + (0 if change == "inverted parity" else 1)) % 2
            bar = pointer(full, slot)
            wait = run(I.barrier_wait(), pointer(empty, slot), parity)
            return block(
                None if change == "producer does not wait" else wait,
                run(I.barrier_expect(), bar, expected),
                run(I.tma_load(2), pointer(s, base), tir.address_of(a_map), bar, kt * bk, by * bm),
                loop(
                    boxes,
                    lambda j: run(
                        I.tma_load(2),
                        pointer(s, base + a_size + j * bk * 64),
                        tir.address_of(b_map), bar, bx * bn + j * 64, kt * bk,
                    ),
                    UNROLLED,
                ),
            )  # fmt: skip

        def consume(kt):
            slot, base = kt % stages, kt % stages * stage
            half = group - 1
            a_tile = pointer(s, base + half * 64 * bk)
            b_tile = pointer(s, base + a_size)
            product = I.wgmma(bn, "float16", "float16", b_major="n")
            step = tir.IntImm("uint64", 2)

            def multiply(kk):
                wide = tir.Cast("uint64", kk)
                return run(
                    product, pointer(acc, 0),
                    I.descriptor(128, 16, 1024).call(a_tile) + step * wide,
                    I.descriptor(128, bk * 128, 1024).call(b_tile)
                    + tir.IntImm("uint64", 128) * wide,
                    1,
                )  # fmt: skip

            release = when(
                tx % 128 == 0, run(I.barrier_arrive(), pointer(empty, (kt + stages - 1) % stages))
            )
            early = when(tx % 128 == 0, run(I.barrier_arrive(), pointer(empty, slot)))
            wait = run(I.barrier_wait(), pointer(full, slot), kt // stages % 2)
            return block(
                None if change == "consumer does not wait" else wait,
                early if change == "early release" else None,
                None if change == "no wgmma fence" else run(I.wgmma_fence()),
                loop(bk // 16, multiply, UNROLLED),
                run(I.wgmma_commit()),
                run(I.wgmma_wait(1)),
                store(acc, tir.FloatImm("float32", 0.0), 0)
                if change == "touches accumulator" else None,
                None if change == "early release" else when(kt > 0, release),
            )  # fmt: skip

        def epilogue(i):
            base = stages * stage
            warp = tx % 128 // 32
            row = (group - 1) * 64 + warp * 16 + i % 2 * 8 + lane // 4
            column = i // 2 * 8 + lane % 4 * 2
            place = base + column // 64 * (bm * 64) + row * 64 + column % 64
            return loop(
                2,
                lambda v: store(
                    s, tir.Cast("float16", load(acc, i // 2 * 4 + i % 2 * 2 + v)), place + v
                ),
                VECTORIZED,
            )

        sends = block(
            loop(
                boxes,
                lambda j: run(
                    I.tma_store(2), tir.address_of(c_map),
                    pointer(s, stages * stage + j * bm * 64), bx * bn + j * 64, by * bm,
                ),
                UNROLLED,
            ),
            run(I.bulk_commit()),
            None if change == "no store wait" else run(I.bulk_wait(0)),
        )  # fmt: skip
        consumer = block(
            run(I.set_registers(240, True)),
            tir.AllocBuffer(acc),
            loop(registers, lambda i: store(acc, tir.FloatImm("float32", 0.0), i), UNROLLED),
            loop(steps, consume),
            run(I.wgmma_wait(7 if change == "no final wait" else 0)),
            loop(bn // 4, epilogue, UNROLLED),
            None if change == "no proxy fence" else run(I.fence_async()),
            None if change == "no store barrier" else run(I.bar_sync(), 1, 128 * consumers),
            when(tx == 128, sends),
        )
        producer = block(
            run(I.set_registers(24, False)),
            when(tir.all(tx // 32 == 0, I.elect().call() != 0), loop(steps, produce)),
        )
        return block(
            tir.AllocBuffer(s), tir.AllocBuffer(full), tir.AllocBuffer(empty),
            when(
                tx == 0,
                block(
                    loop(stages, initialise, UNROLLED),
                    None if change == "no init fence" else run(I.fence_barrier_init()),
                ),
            ),
            None if change == "no init barrier" else run(I.sync_threads()),
            when(group == 0, producer, consumer),
        )  # fmt: skip

    body = bind(
        "blockIdx.x",
        n // bn,
        lambda bx: bind(
            "blockIdx.y",
            m // bm,
            lambda by: bind("threadIdx.x", threads, lambda tx: kernel(bx, by, tx)),
        ),
    )
    return tir.PrimFunc([a_map, b_map, c_map], body)
