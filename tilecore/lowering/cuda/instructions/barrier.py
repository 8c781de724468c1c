"""Barriers: of a block, of named groups of threads, of a cluster, in memory; fences."""

from __future__ import annotations

import functools

from tilecore.lowering.cuda.instructions.base import (
    C_TYPES,
    Instruction,
    asm,
    shared,
)

BAR = f'"r"({shared("barrier")})'
TRY_WAIT = "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
# Lanes may wait for different barriers: the branches are not uniform.
LOOP = "{ .reg .pred p; WAIT: " + TRY_WAIT + " @p bra DONE; bra WAIT; DONE: }"
# Below sm_90 nothing waits by itself: the test is repeated.
TEST_WAIT = TRY_WAIT.replace("try_wait", "test_wait").replace("::cta", "")
SPIN = "{ .reg .pred p; WAIT: " + TEST_WAIT + " @p bra DONE; bra WAIT; DONE: }"

MAPA = "void* remote;\n" + asm(
    "mapa.u64 %0, %1, %2;", ['"=l"(remote)'], ['"l"(element)', '"r"(rank)'], touches_memory=False
)


@functools.cache
def sync_threads() -> Instruction:
    """Return ``()``: all threads of the block wait for each other."""
    return Instruction("tc_sync_threads", "", "__syncthreads();")


@functools.cache
def sync_warp() -> Instruction:
    """Return ``()``: all lanes of the warp wait for each other."""
    return Instruction("tc_sync_warp", "", "__syncwarp();")


@functools.cache
def converge_warp() -> Instruction:
    """Return ``()``: lanes go on together; stands before instructions for whole warps (.aligned).

    What lanes did before is not told to others: see ``sync_warp``.
    """
    return Instruction("tc_converge_warp", "", "__syncwarp();", "emu::converge_warp();")


@functools.cache
def bar_sync() -> Instruction:
    """Return ``(int id, int threads)``: wait at named barrier ``id`` (0 is the block's)."""
    return Instruction(
        "tc_bar_sync", "int id, int threads",
        asm("bar.sync %0, %1;", (), ['"r"(id)', '"r"(threads)']), "emu::bar_sync(id, threads);",
    )  # fmt: skip


@functools.cache
def bar_arrive() -> Instruction:
    """Return ``(int id, int threads)``: arrive at a named barrier without waiting."""
    return Instruction(
        "tc_bar_arrive", "int id, int threads",
        asm("bar.arrive %0, %1;", (), ['"r"(id)', '"r"(threads)']),
        "emu::bar_arrive(id, threads);",
    )  # fmt: skip


@functools.cache
def barrier_init() -> Instruction:
    """Return ``(void* barrier, int count)``: a barrier in shared memory, phase 0."""
    return Instruction(
        "tc_barrier_init", "void* barrier, int count",
        asm("mbarrier.init.shared.b64 [%0], %1;", (), [BAR, '"r"(count)']),
        "emu::barrier_init(barrier, count);", arch="sm_80",
    )  # fmt: skip


@functools.cache
def barrier_invalidate() -> Instruction:
    """Return ``(void* barrier)``: the memory may be used for something else."""
    return Instruction(
        "tc_barrier_invalidate", "void* barrier", asm("mbarrier.inval.shared.b64 [%0];", (), [BAR]),
        "emu::barrier_invalidate(barrier);", arch="sm_80",
    )  # fmt: skip


@functools.cache
def barrier_arrive() -> Instruction:
    """Return ``(void* barrier)``: one arrival, released to whoever waits."""
    text = "{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }"
    return Instruction(
        "tc_barrier_arrive", "void* barrier", asm(text, (), [BAR]),
        "emu::barrier_arrive(barrier, 1);", arch="sm_80",
    )  # fmt: skip


@functools.cache
def barrier_arrive_remote() -> Instruction:
    """Return ``(void* barrier, int rank)``: one arrival at that barrier of a block of the cluster.

    ``barrier`` is the address of the own block's barrier at the same place.
    """
    text = (
        "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote]; }"
    )
    return Instruction(
        "tc_barrier_arrive_remote", "void* barrier, int rank",
        asm(text, (), [BAR, '"r"(rank)']), "emu::barrier_arrive_remote(barrier, rank);",
        arch="sm_90",
    )  # fmt: skip


@functools.cache
def barrier_free_remote() -> Instruction:
    """Return ``(void* barrier, int rank)``: as ``barrier_arrive_remote``, by who has only read.

    What it releases is the block's alone: one for the cluster would wait for all its accesses of
    memory (MEMBAR.ALL.GPU) each time. Source: CUTLASS, cutlass/arch/barrier.h, ClusterBarrier.
    """
    text = (
        "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
        "mbarrier.arrive.shared::cluster.b64 _, [remote]; }"
    )
    return Instruction(
        "tc_barrier_free_remote", "void* barrier, int rank",
        asm(text, (), [BAR, '"r"(rank)']), "emu::barrier_arrive_remote(barrier, rank);",
        arch="sm_90",
    )  # fmt: skip


@functools.cache
def barrier_expect() -> Instruction:
    """Return ``(void* barrier, int bytes)``: one arrival; the phase also waits for ``bytes``."""
    text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
    return Instruction(
        "tc_barrier_expect", "void* barrier, int bytes", asm(text, (), [BAR, '"r"(bytes)']),
        "emu::barrier_expect(barrier, bytes, true);", arch="sm_90",
    )  # fmt: skip


@functools.cache
def barrier_expect_only() -> Instruction:
    """Return ``(void* barrier, int bytes)``: the phase also waits for ``bytes``; no arrival."""
    text = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
    return Instruction(
        "tc_barrier_expect_only", "void* barrier, int bytes", asm(text, (), [BAR, '"r"(bytes)']),
        "emu::barrier_expect(barrier, bytes, false);", arch="sm_90",
    )  # fmt: skip


@functools.cache
def barrier_expect_remote() -> Instruction:
    """Return ``(void* barrier, int rank, int bytes)``: ``barrier_expect_only`` of another block.

    ``barrier`` is the address of the own block's barrier at the same place.
    Source: CCCL, cuda/__ptx/instructions/generated/mbarrier_expect_tx.h.
    """
    text = (
        "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
        "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [remote], %2; }"
    )
    return Instruction(
        "tc_barrier_expect_remote", "void* barrier, int rank, int bytes",
        asm(text, (), [BAR, '"r"(rank)', '"r"(bytes)']),
        "emu::barrier_expect_remote(barrier, rank, bytes);", arch="sm_90",
    )  # fmt: skip


@functools.cache
def barrier_wait(arch: str = "sm_90", *, of_cluster: bool = False) -> Instruction:
    """Return ``(void* barrier, int parity)``: wait until the phase of that parity is complete.

    ``of_cluster``: what other blocks wrote before they arrived is seen.
    """
    has_try = int(arch.removeprefix("sm_").rstrip("af")) >= 90
    text = LOOP if has_try else SPIN
    if of_cluster:
        text = LOOP.replace("parity.shared", "parity.acquire.cluster.shared")
    name = "_cluster" if of_cluster else "" if has_try else "_spin"
    return Instruction(
        f"tc_barrier_wait{name}", "void* barrier, int parity",
        asm(text, (), [BAR, '"r"(parity)']),
        "emu::barrier_wait(barrier, parity);", arch="sm_90" if has_try else "sm_80",
    )  # fmt: skip


@functools.cache
def barrier_test() -> Instruction:
    """Return ``int (void* barrier, int parity)``: whether the phase of that parity is complete."""
    text = (
        "{ .reg .pred p; " + TEST_WAIT.replace("[%0], %1", "[%1], %2") + " selp.b32 %0, 1, 0, p; }"
    )
    return Instruction(
        "tc_barrier_test", "void* barrier, int parity",
        "int done;\n" + asm(text, ['"=r"(done)'], [BAR, '"r"(parity)']) + "\nreturn done;",
        "return emu::barrier_test(barrier, parity);", "int32", "sm_80",
    )  # fmt: skip


@functools.cache
def fence_barrier_init() -> Instruction:
    """Return ``()``: barriers initialised by this thread are seen by the cluster."""
    return Instruction(
        "tc_fence_barrier_init", "", asm("fence.mbarrier_init.release.cluster;"),
        "emu::fence_barrier_init();", arch="sm_90",
    )  # fmt: skip


@functools.cache
def fence_async(of_cluster: bool = False) -> Instruction:
    """Return ``()``: what this thread wrote to shared memory is seen by TMA and wgmma.

    ``of_cluster``: also what it wrote to that of other blocks.
    """
    name, space = ("_cluster", "cluster") if of_cluster else ("", "cta")
    return Instruction(
        f"tc_fence_async{name}", "", asm(f"fence.proxy.async.shared::{space};"),
        "emu::fence_async();", arch="sm_90",
    )  # fmt: skip


@functools.cache
def launch_dependents() -> Instruction:
    """Return ``()``: the launch behind this one may begin when all blocks have come by here."""
    return Instruction(
        "tc_launch_dependents", "", asm("griddepcontrol.launch_dependents;"), ";", arch="sm_90"
    )


@functools.cache
def await_launches() -> Instruction:
    """Return ``()``: wait until the launches before have ended, and see what they wrote."""
    return Instruction("tc_await_launches", "", asm("griddepcontrol.wait;"), ";", arch="sm_90")


@functools.cache
def thread_fence(scope: str = "gpu") -> Instruction:
    """Return ``()``: order this thread's memory accesses; scope "cta", "gpu" or "sys"."""
    name = {"cta": "__threadfence_block", "gpu": "__threadfence", "sys": "__threadfence_system"}
    return Instruction(f"tc_thread_fence_{scope}", "", f"{name[scope]}();")


@functools.cache
def cluster_arrive() -> Instruction:
    """Return ``()``: arrive at the barrier of the cluster (all threads of all its blocks)."""
    return Instruction(
        "tc_cluster_arrive", "", asm("barrier.cluster.arrive.release.aligned;"),
        "emu::cluster_arrive();", arch="sm_90",
    )  # fmt: skip


@functools.cache
def cluster_wait() -> Instruction:
    """Return ``()``: wait for the barrier of the cluster."""
    return Instruction(
        "tc_cluster_wait", "", asm("barrier.cluster.wait.acquire.aligned;"),
        "emu::cluster_wait();", arch="sm_90",
    )  # fmt: skip


@functools.cache
def cluster_rank() -> Instruction:
    """Return ``int ()``: the number of this block within its cluster."""
    text = asm("mov.u32 %0, %%cluster_ctarank;", ['"=r"(rank)'], touches_memory=False)
    return Instruction(
        "tc_cluster_rank", "", f"int rank;\n{text}\nreturn rank;",
        "return emu::cluster_rank();", "int32", "sm_90",
    )  # fmt: skip


@functools.cache
def cluster_address() -> Instruction:
    """Return ``void* (void* element, int rank)``: where that element of a block is.

    ``element`` is the address of the own block's element at the same place in shared memory.
    """
    return Instruction(
        "tc_cluster_address", "void* element, int rank", f"{MAPA}\nreturn remote;",
        "return emu::cluster_pointer(element, rank);", "handle", "sm_90",
    )  # fmt: skip


@functools.cache
def cluster_load(dtype: str) -> Instruction:
    """Return ``dtype (const void* element, int rank)``: that element of a block of the cluster.

    ``element`` is the address of the own block's element at the same place in shared memory.
    """
    ctype = C_TYPES[dtype]
    return Instruction(
        f"tc_cluster_load_{dtype}", "const void* element, int rank",
        f"{MAPA}\nreturn *(const {ctype}*)remote;",
        f"return *(const {ctype}*)emu::cluster_pointer(element, rank);", dtype, "sm_90",
    )  # fmt: skip
