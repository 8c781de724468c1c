"""The proof of order (tilecore.ordering): faults it must find, and programs it must accept."""

import re

import numpy as np
import pytest

import tilecore
import tilecore.language as T
from tests.tilecore.cuda.catalog import catalog
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tests.tilecore.cuda.programs import gemm_sm80, gemm_sm90
from tests.tilecore.cuda.test_own_pipelines import specialized_gemm
from tests.tilecore.cuda.tile_programs import attention, gemm
from tilecore.codegen.order import Reading, read_kernels
from tilecore.codegen.order_proof import ENOUGH, faults_of, order_programs, prove_order
from tilecore.emulator import ALL_SCHEDULES
from tilecore.errors import EmulationError, OrderFault, TileError
from tilecore.ordering import Verdict, check, judge, unneeded, without
from tilecore.ordering.check import acts
from tilecore.ordering.instructions import act_of
from tilecore.ordering.operands import Pointer

# Seeded bugs of test_seeded_bugs.py, which the emulator finds: what the proof says of them.
# "not transposed", "misaligned" and "global bounds" are in order, and wrong for other reasons.
SM80 = {
    "no wait": "race: cp.async .* writes .* thread .* reads.*cp.async.wait_group",
    "late wait": "race: cp.async .* writes .* thread .* reads",
    "no barrier": "race: cp.async .* writes .* thread .* reads",
    "fetch before barrier": "race: thread .* reads .* cp.async .* writes",
    "divergent barrier": "race|deadlock",
    "swizzle": "race: cp.async .* writes .* cp.async .* writes",
    "shared bounds": "bounds: expected less than .* found shared memory at",
    "no commit": "race: cp.async .* writes .* thread .* reads",
    "left in flight": "in flight: a cp.async when its thread exits",
}
SM90 = {
    "expects too much": "deadlock",
    "inverted parity": "deadlock",
    "producer does not wait": "race: a load on the mbarrier .* writes|arrivals",
    "consumer does not wait": "race: a load on the mbarrier .* writes .* wgmma .* reads",
    "early release": "race: wgmma .* reads .* a load on the mbarrier .* writes",
    "no wgmma fence": "registers: .* no wgmma.fence is between",
    "touches accumulator": "registers: .* used while it is under way",
    "no final wait": "registers: .* used while it is under way",
    "no proxy fence": "proxy: thread .* writes .* a bulk store .* reads.*fence.proxy.async",
    "no store barrier": "race: thread .* writes .* a bulk store .* reads.*a barrier between them",
    "no store wait": "in flight: a bulk store when its thread exits",
    "no init fence": "setup: .* no fence made visible.*fence.mbarrier_init",
    "no init barrier": "setup: an mbarrier is used and nothing orders that",
}
BOXES = {"A_map": 128 * 64 * 2, "B_map": 64 * 64 * 2, "C_map": 128 * 64 * 2}


def faults(func, boxes):
    (kernel,) = read_kernels(func, Reading(boxes, {}))
    return [str(fault) for fault in check(kernel)]


def kernels(func, target):
    return order_programs(lowered(func, target, is_ordered=False)[1])


def test_the_hand_written_products_are_in_order():
    assert faults(gemm_sm80(64, 128, 160), {}) == []
    assert faults(gemm_sm90(128, 128, 256), BOXES) == []


@pytest.mark.parametrize("change", SM80)
def test_a_bug_in_the_product_for_sm80_is_named(change):
    found = faults(gemm_sm80(64, 128, 160, change=change), {})
    assert re.search(SM80[change], "\n".join(found)), found


@pytest.mark.few(1)
@pytest.mark.parametrize("change", SM90)
def test_a_bug_in_the_product_for_sm90_is_named(change):
    found = faults(gemm_sm90(128, 128, 256, change=change), BOXES)
    assert re.search(SM90[change], "\n".join(found)), found


# --- the language of events ------------------------------------------------------------------


def dummy(parameter):
    """Return an argument of a device function by its C declaration."""
    words = parameter.replace("*", " * ").split()
    if words[-1] == "map":
        return Pointer("map", size=256)
    if "*" not in words:
        return lambda env: 0
    return Pointer("local" if words[-1] in ("d", "s", "a", "b", "c", "halves", "out") else "shared")


@pytest.mark.parametrize("instruction", catalog().values(), ids=list(catalog()))
def test_every_instruction_is_known(instruction):
    given = [dummy(p) for p in instruction.parameters.split(",") if p.strip()]
    assert act_of(instruction.name.removeprefix("tc_"), given, 0) is not None


def test_an_instruction_that_is_not_known_is_refused():
    assert act_of("frobnicate", [Pointer("shared")], 0) is None
    assert act_of("pack_float16", [Pointer("shared")], 0) is None


# --- what the compiler emits -----------------------------------------------------------------

PROGRAMS = {
    "gemm": gemm(130, 200, 160, (64, 64, 32), 3, "float16", "float16"),
    "deep gemm": gemm(130, 200, 500, (64, 128, 64), 4, "bfloat16", "float32"),
    "transposed gemm": gemm(
        128, 128, 192, (64, 64, 64), 2, "float16", "float16", trans=(True, True)
    ),
    "attention": attention(1, 200, 2, 64, (64, 64), 2, 128, "float16", True),
}
CASES = [
    *((name, target) for name in PROGRAMS for target in ("sm_80", "h100")),
    ("gemm", "sm_70"), ("gemm", "b200"), ("deep gemm", "b200"),
]  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "target"), CASES)
def test_programs_are_in_order_and_wait_for_nothing_in_vain(name, target):
    program = lowered(PROGRAMS[name], target, is_ordered=False)[1]
    for is_last in (True, False):
        (kernel,) = order_programs(program, is_last=is_last)
        assert judge(kernel, ENOUGH) == Verdict((), ())
    (kernel,) = order_programs(program)
    assert unneeded(kernel, ENOUGH) == []


# In loops, what need not be there: the tiles of one product are freed together, so that whoever
# waits until one is free need not wait for the other.
SPARE = {"gemm": 1, "transposed gemm": 1}
# What costs nothing and may stand twice: it tells the assembler what it may not move.
FREE = ("registers", "tensor fence")


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "target"), CASES)
def test_whatever_orders_in_a_loop_is_missed_where_it_is_left_out(name, target):
    """Every barrier, fence, wait, arrival and commit, by the first block or the last one.

    One of the two takes the most turns: rows that see few keys are left for the end.
    """
    program = lowered(PROGRAMS[name], target, is_ordered=False)[1]
    (first,), (kernel,) = (order_programs(program, is_last=is_last) for is_last in (False, True))
    of_first, inside = (acts(k, inside_loops=True) for k in (first, kernel))
    assert [a.site for a in of_first] == [a.site for a in inside]
    spare = [
        act
        for other, act in zip(of_first, inside, strict=True)
        if not check(without(first, other), ENOUGH) and not check(without(kernel, act), ENOUGH)
    ]
    free = [a for a in spare if a.kind in FREE]
    waits = [a for a in spare if "barrier_wait" in kernel.sites[a.site].text]
    assert len(free) + len(waits) == len(spare)
    assert len(waits) <= (SPARE.get(name, 0) if target != "sm_80" else 0)
    assert inside


ORDERING = {
    "sm_70": {"sync_threads"},
    "sm_80": {"sync_threads", "cp_async_commit", "cp_async_wait"},
    "h100": {"barrier_init", "fence_barrier_init", "sync_threads", "barrier_wait", "barrier_expect",
             "barrier_arrive", "wgmma_fence", "wgmma_commit", "wgmma_wait", "fence_async",
             "bar_sync", "bulk_commit", "bulk_wait"},
    "b200": {"barrier_init", "fence_barrier_init", "sync_threads", "barrier_wait", "barrier_expect",
             "tensor_commit", "tensor_fence_after", "tensor_wait_loads", "fence_async", "bar_sync",
             "bulk_commit", "bulk_wait"},
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ORDERING)
def test_every_kind_of_instruction_that_orders_is_missed(target):
    (kernel,) = kernels(PROGRAMS["gemm"], target)
    missed = {
        re.sub(r"(_read)?_\d+$", "", kernel.sites[a.site].text)
        for a in acts(kernel)
        if check(without(kernel, a), ENOUGH)
    }
    assert missed >= ORDERING[target], ORDERING[target] - missed


# Of each kind that has no arguments, all of a program are left out of the text that the emulator
# runs, and of what is proven.
DROPPED = [
    ("sm_80", "cp_async_commit"), ("sm_80", "cp_async_wait_1"), ("sm_80", "sync_threads"),
    ("h100", "wgmma_fence"), ("h100", "wgmma_commit"), ("h100", "wgmma_wait_1"),
    ("h100", "wgmma_wait_0"), ("h100", "fence_async"), ("h100", "bulk_wait_read_0"),
    ("h100", "fence_barrier_init"), ("b200", "tensor_wait_loads"), ("b200", "fence_async"),
]  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize(("target", "name"), DROPPED)
def test_the_proof_and_the_emulator_agree(target, name):
    func = PROGRAMS["gemm"]
    (kernel,) = kernels(func, target)
    dropped = [a for a in acts(kernel) if kernel.sites[a.site].text == name]
    assert dropped
    for act in dropped:
        kernel = without(kernel, act)
    assert check(kernel, ENOUGH)
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((130, 160), (160, 200)))
    c = np.full((130, 200), np.nan, np.float16)
    with pytest.raises(EmulationError):  # noqa: PT012 - or a wrong result
        run_emulated(func, target, [a, b, c], ALL_SCHEDULES, without=f"tc_{name}();")
        if not np.abs(c - a.astype(np.float64) @ b.astype(np.float64)).max() <= 0.1:
            raise EmulationError(kernel="gemm", what="wrong result")


# --- programs with barriers of their own ------------------------------------------------------


def ring(*, waits=True, frees=True, count=128):
    """A copy by way of two tiles that one warpgroup fills and the other one empties."""
    tile, turns = 512, 6

    @T.prim_func
    def main(A: T.Tensor((turns, tile), "float32"), B: T.Tensor((turns, tile), "float32")):
        with T.Kernel(1, threads=256):
            tiles = T.alloc_shared((2, tile), "float32")
            full = T.alloc_barrier([128, 128])
            empty = T.alloc_barrier([count, count])
            tx = T.get_thread_binding()
            if tx < 128:
                for i in range(turns):
                    T.barrier_wait(empty[i % 2], (i // 2 + 1) % 2)
                    T.copy(A[i, :], tiles[i % 2, :])
                    T.barrier_arrive(full[i % 2])
            else:
                for i in range(turns):
                    if waits:
                        T.barrier_wait(full[i % 2], i // 2 % 2)
                    T.copy(tiles[i % 2, :], B[i, :])
                    if frees:
                        T.barrier_arrive(empty[i % 2])

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize(("parts", "producer"), [(1, 1), (2, 0)])
def test_a_producer_and_a_consumer_wait_for_nothing_in_vain(parts, producer):
    """Nor do they tell the TMA of tiles that it has filled itself."""
    (kernel,) = kernels(specialized_gemm(256, 128, 640, parts, producer), "h100")
    assert judge(kernel, ENOUGH) == Verdict((), ())
    assert unneeded(kernel, ENOUGH) == []
    inside = acts(kernel, inside_loops=True)
    spare = [a for a in inside if a.kind not in FREE and not check(without(kernel, a), ENOUGH)]
    assert spare == []


@pytest.mark.parametrize("target", ["sm_80", "h100"])
def test_roles_with_barriers_of_their_own_are_in_order(target):
    prove_order(lowered(ring(), target, is_ordered=False)[1], "ring")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"waits": False}, "race: cp.async of .* writes .* thread 128 reads, and nothing orders"),
        (
            {"frees": False},
            "deadlock: 128 threads from thread 0 on wait for ever: barrier_wait_spin at",
        ),
        ({"count": 64}, "deadlock"),
        ({"count": 129}, "deadlock"),
    ],
    ids=lambda v: str(v)[:24],
)
def test_a_fault_of_a_program_is_an_error_with_its_place(change, message):
    with pytest.raises(OrderFault, match=message) as caught:
        lowered(ring(**change), "sm_80", {"check_order": True})
    assert caught.value.code == "TC308"
    assert caught.value.span is not None
    assert caught.value.span.file == __file__


def test_blocks_of_a_cluster_may_have_a_part_of_a_warpgroup():
    """Found by a random program: products of the second block were those of other threads."""
    M, N, K = 64, 32, 64

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((2 * N, K), "float16"),
        C: T.Tensor((M, 2 * N), "float32"),
    ):
        with T.ClusterKernel(2, threads=160, cluster_dims=2) as bx:
            A_s = T.alloc_shared((M, K), "float16")
            B_s = T.alloc_shared((N, K), "float16")
            sums = T.alloc_fragment((M, N), "float32")
            loaded = T.alloc_cluster_barrier([32])
            tx = T.get_thread_binding()
            if tx >= 128:
                T.tma_copy(A, A_s, barrier=loaded, cluster_mask=3)
                T.tma_copy(B[bx * N, 0], B_s, barrier=loaded)
                T.mbarrier_arrive(loaded)
            else:
                T.mbarrier_wait_parity(loaded, 0)
                T.gemm(A_s, B_s, sums, transpose_B=True, clear_accum=True)
                T.copy(sums, C[0, bx * N])

    assert lowered(main, "h100")


@pytest.mark.parametrize("target", ["h100", "b200"])
def test_blocks_of_a_cluster_may_have_lengths_of_their_own(target):
    """Found by a random program: copies were taken to run ahead of turns that do not come."""

    @T.prim_func
    def main(
        X: T.Tensor((2, 32, 250), "float32"), N: T.Tensor((2,), "int32"),
        Y: T.Tensor((2, 32, 32), "float32"),
    ):  # fmt: skip
        with T.ClusterKernel(2, threads=128, cluster_dims=2) as bx:
            tile = T.alloc_shared((32, 32), "float32")
            sums = T.alloc_fragment((32, 32), "float32")
            T.clear(sums)
            for k in T.Pipelined(N[bx], num_stages=3):
                T.copy(X[bx, 0, k * 32], tile)
                for i, j in T.Parallel(32, 32):
                    sums[i, j] += tile[31 - i, j]
            T.copy(sums, Y[bx, 0, 0])

    assert lowered(main, target)


def test_the_proof_is_an_option_of_a_compilation():
    lowered(ring(), "sm_80", {"check_order": True})
    lowered(ring(waits=False), "sm_80", is_ordered=False)
    with pytest.raises(OrderFault):
        tilecore.compile(ring(waits=False), target="sm_80", pass_configs={"tc.check_order": True})
    with pytest.raises(TileError, match="check_order=7: expected True or False"):
        lowered(ring(), "sm_80", {"check_order": 7})


def branches_of_blocks(turns):
    """Products of all blocks but the first."""

    @T.prim_func
    def main(
        A: T.Tensor((256, 64), "float16"), B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((256, 64), "float16"),
    ):  # fmt: skip
        with T.Kernel(4, threads=128) as bx:
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            if bx > 0:
                for _ in T.Pipelined(turns(bx), num_stages=2):
                    T.copy(A[bx * 64, 0], a)
                    T.copy(B, b)
                    T.gemm(a, b, c)
            T.copy(c, C[bx * 64, 0])

    return main


def branches_of_threads(turns):
    """A loop of all threads but the first."""

    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            a = T.alloc_shared((64,), "int32")
            tx = T.get_thread_binding()
            a[tx] = A[tx]
            T.sync_threads()
            if tx > 0:
                for i in T.serial(turns(tx)):
                    B[tx] = a[i]

    return main


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("turns", [lambda n: 12 // n, lambda n: 8 >> (n - 1)])
@pytest.mark.parametrize("make", [branches_of_blocks, branches_of_threads])
def test_what_has_no_value_in_a_branch_that_is_not_taken_stops_no_proof(make, turns):
    """The first block, or thread, would divide by 0, or shift by less than 0 bits."""
    program = lowered(make(turns), "h100", is_ordered=False)[1]
    assert list(faults_of(program)) == []


def test_threads_know_of_tensor_memory_behind_a_meeting_of_their_warp_what_they_knew_before():
    """It meets to free ``a`` and ``b``; the products that it waited for precede its next store."""

    @T.prim_func
    def main(
        A: T.Tensor((256, 64), "float16"), B: T.Tensor((128, 64), "float16"),
        C: T.Tensor((128, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            ones = T.alloc_fragment((128, 64), "float16")
            sums = T.alloc_fragment((128, 64), "float32")
            T.fill(ones, 1)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[k * 128, 0], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(ones, b, sums, clear_accum=True)
                T.gemm(a, b, sums)
            T.copy(sums, C)

    (kernel,) = kernels(main, "b200")
    texts = [kernel.sites[act.site].text for act in acts(kernel, inside_loops=True)]
    assert "sync_warp" in texts
    assert check(kernel, ENOUGH) == []


@pytest.mark.parametrize("size", ["an element", "a dimension"])
def test_a_loop_that_has_no_turns_orders_nothing(size):
    """Each turn begins with a barrier; what comes behind the loop must not rest on it."""
    n = T.dynamic("n")

    @T.prim_func
    def main(
        X: T.Tensor((128,), "float32"), N: T.Tensor((1,), "int32"), Z: T.Tensor((n,), "float32"),
        Y: T.Tensor((128,), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((128,), "float32")
            t = T.alloc_shared((128,), "float32")
            u = T.alloc_shared((128,), "float32")
            T.copy(X, s)
            T.fill(t, 0)
            for _ in T.serial(N[0] if size == "an element" else n):
                T.copy(u, t)
                for i in T.Parallel(128):
                    u[i] = t[127 - i] + 1
            for i in T.Parallel(128):
                Y[i] = s[127 - i] + t[i]

    program = lowered(main, "sm_80", is_ordered=False)[1]
    assert list(faults_of(program)) == []
    found = {}
    for is_idle in (False, True):
        (kernel,) = order_programs(program, is_idle=is_idle)
        assert kernel.is_open
        last = [a for a in acts(kernel) if a.kind == "barrier"][-1]
        found[is_idle] = [str(f) for f in check(without(kernel, last), ENOUGH)]
    assert found[False] == []
    assert re.search("race: cp.async .* writes .* thread .* reads", "\n".join(found[True]))


@pytest.mark.parametrize("rows", [64, 2**31 - 1, None], ids=["small", "huge", "dynamic"])
def test_a_tensor_of_any_size_that_a_block_writes_and_reads(rows):
    """Once the proof held a shadow of all elements: of dynamic ones TiB."""
    n = T.dynamic("n") if rows is None else rows

    @T.prim_func
    def main(X: T.Tensor((n, 128), "float32"), Y: T.Tensor((n, 128), "float32")):
        with T.Kernel(n, threads=128) as b:
            t = T.get_thread_binding()
            X[b, t] = 2.0
            T.sync_threads()
            Y[b, t] = X[b, 127 - t]

    (kernel,) = kernels(main, "sm_80")
    assert check(kernel, ENOUGH) == []
    (barrier,) = [a for a in acts(kernel) if a.kind == "barrier"]
    found = "\n".join(str(f) for f in check(without(kernel, barrier), ENOUGH))
    assert re.search(r"race: thread \d+ writes a tensor at \d+, which thread \d+ reads", found)


@pytest.mark.parametrize("how", ["plain", "atomic", "register"])
def test_what_elements_are_taken_for_lies_outside_of_no_tile(how):
    """Once a count per key was a fault: the key was taken for a number beyond the tile."""

    @T.prim_func
    def main(
        keys: T.Tensor((16,), "int32"), firsts: T.Tensor((16,), "int32"),
        counts: T.Tensor((8,), "int32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=64):
            count = T.alloc_shared((8,), "int32")
            key = T.alloc_var("int32")
            T.clear(count)
            for i in T.serial(16):
                if how == "register":
                    key = keys[i] + 1
                    count[key - 1] = count[key - 1] + 1
                elif how == "plain":
                    firsts[i] = count[keys[i]]
                    count[keys[i]] += 1
                else:
                    T.atomic_add(count[keys[i]], 1)
            T.cumsum(count)
            T.copy(count, counts)

    keys = np.random.default_rng(1).integers(0, 8, 16).astype(np.int32)
    counts = np.zeros(8, np.int32)
    run_emulated(main, "sm_80", [keys, np.zeros(16, np.int32), counts], ALL_SCHEDULES)
    np.testing.assert_array_equal(counts, np.bincount(keys, minlength=8).cumsum())
