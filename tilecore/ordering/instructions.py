"""The acts of device functions, by name: the one table of what the generated code may call."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tilecore.ordering import barrier_effects as bars
from tilecore.ordering import effects as do
from tilecore.ordering import matrix_effects as matrix
from tilecore.ordering.operands import Operand, Pointer, Run
from tilecore.ordering.program import Act

BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "f32": 4, "f64": 8, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1,
         "e2m1": 1, "s32": 4, "u32": 4}  # fmt: skip
ITEMS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "uint32": 4,
         "int64": 8, "uint64": 8, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2}  # fmt: skip
# What touches no memory that threads share, and orders nothing.
PLAIN = re.compile(
    r"(wave_)?(shuffle|any|all|ballot|vote)|elect|warp_index|assume_below|clock|registers|"
    r"wgmma_keep|tensor_keep|tensor_free|mma_|mfma|fma2_|masked_or|pack|exact|round|extend|widen|narrow|"
    r"compare|print|fail|launch_dependents|await_launches|prefetch_map|schedule_fence|cluster_rank|thread_fence|converge_warp|"
    r"sin|cos|tanh|exp2?|log2?|rsqrt|sqrt|reciprocal|rcp|approx"
)  # fmt: skip
ADDRESSES = re.compile(r"(tensor_)?descriptor_|cluster_address|barrier_test")  # touch nothing
Args = Sequence[Operand]
FIXED: dict[str, tuple[Callable[[int], Run], str, bool]] = {
    "sync_threads": (do.sync_threads, "barrier", True),
    "sync_warp": (do.sync_warp, "barrier", False),
    "cluster_arrive": (do.cluster_arrive, "barrier", False),
    "cluster_wait": (do.cluster_wait, "barrier", True),
    "fence_barrier_init": (bars.fence_barrier_init, "fence", False),
    "fence_async": (bars.fence_async, "fence", False),
    "fence_async_cluster": (bars.fence_async, "fence", False),
    "cp_async_commit": (do.cp_async_commit, "commit", False),
    "bulk_commit": (do.bulk_commit, "commit", False),
    "wgmma_fence": (lambda s: lambda m, e: m.products.fence(e[0].ids), "registers", False),
    "wgmma_commit": (lambda s: lambda m, e: m.products.commit(e[0].ids), "commit", False),
}


def _pointer(value: Operand) -> Pointer:
    assert isinstance(value, Pointer)
    return value


def act_of(name: str, args: Args, site: int) -> list[Act] | None:
    """Return what a device function does, or None if it is not in the table."""
    if name in FIXED:
        make, kind, blocks = FIXED[name]
        return [Act(make(site), site, blocks, kind)]
    for find in (_barriers, _copies, _products, _accesses):
        found = find(name, args, site)
        if found is not None:
            return found
    if any(isinstance(a, Pointer) and a.space == "shared" for a in args):
        return [] if ADDRESSES.match(name) else None
    return [] if PLAIN.match(name) else None


def _barriers(name: str, args: Args, site: int) -> list[Act] | None:
    match name:
        case "bar_sync":
            run = do.bar(site, args[0], args[1], waits=True)
            return [Act(run, site, True, "barrier")]
        case "bar_arrive":
            return [Act(do.bar(site, args[0], args[1], waits=False), site, False, "arrival")]
        case "barrier_init":
            return [Act(bars.barrier_init(site, _pointer(args[0]), args[1]), site, False, "setup")]
        case "barrier_invalidate":
            return [Act(bars.barrier_invalidate(site, _pointer(args[0])), site, False, "setup")]
        case "barrier_arrive":
            return [Act(bars.arrive(site, _pointer(args[0])), site, False, "arrival")]
        case "barrier_arrive_remote" | "barrier_free_remote":
            return [Act(bars.arrive(site, _pointer(args[0]), args[1]), site, False, "arrival")]
        case "barrier_expect" | "barrier_expect_only":
            arrives = name == "barrier_expect"
            run = bars.expect(site, _pointer(args[0]), args[1], arrives=arrives)
            return [Act(run, site, False, "arrival")]
        case "barrier_expect_remote":
            run = bars.expect(site, _pointer(args[0]), args[2], arrives=False, rank=args[1])
            return [Act(run, site, False, "arrival")]
        case "barrier_wait" | "barrier_wait_cluster" | "barrier_wait_spin":
            run = bars.barrier_wait(site, _pointer(args[0]), args[1])
            return [Act(run, site, True, "wait")]
    return None


def _copies(name: str, args: Args, site: int) -> list[Act] | None:
    if found := re.fullmatch(r"cp_async_c[ag]_(\d+)(_zfill)?", name):
        return [Act(do.cp_async(site, int(found[1]), _pointer(args[0])), site)]
    if found := re.fullmatch(r"cp_async_wait_(\d+)", name):
        return [Act(do.cp_async_wait(site, int(found[1])), site, False, "wait")]
    if name.startswith("cp_async_arrive"):
        counts = name.endswith("counted")
        run = bars.cp_async_arrive(site, _pointer(args[0]), counts=counts)
        return [Act(run, site, False, "arrival")]
    if name == "bulk_load":
        run = do.load_box(site, _pointer(args[0]), args[2], _pointer(args[3]))
        return [Act(run, site)]
    if found := re.fullmatch(r"bulk_wait(_read)?_(\d+)", name):
        return [Act(do.bulk_wait(site, int(found[2])), site, False, "wait")]
    if name == "bulk_store":
        return [Act(do.store_box(site, _pointer(args[1]), args[2]), site)]
    if found := re.fullmatch(r"tma_load_(\d)d(_own|_multicast|_pair)?", name):
        mask = args[3 + int(found[1])] if found[2] == "_multicast" else None
        target, size, pointer = _pointer(args[0]), _pointer(args[1]).size, _pointer(args[2])
        run = do.load_box(site, target, size, pointer, mask, in_pair=found[2] == "_pair")
        return [Act(run, site)]
    if name.startswith("tma_"):
        return [Act(do.store_box(site, _pointer(args[1]), _pointer(args[0]).size), site)]
    return None


def _products(name: str, args: Args, site: int) -> list[Act] | None:
    form = r"wgmma_(ss|rs)_m64n(\d+)k\d+_\w+?_(\w+?)_\w+?_(\w\w)"
    if found := re.fullmatch(form, name):
        size = BYTES[found[3]]
        run = matrix.wgmma(site, int(found[2]), size, found[4], _pointer(args[0]), *args[1:3])
        return [Act(run, site)]
    if found := re.fullmatch(r"wgmma_wait_(\d+)", name):
        pending = int(found[1])
        return [Act(lambda m, e: m.products.wait(e[0].ids, pending), site, False, "wait")]
    form = r"tensor_mma_(pair_)?(ss|ts)_m(\d+)n(\d+)_\w+?_(\w+?)_\w+?_(\w\w)"
    if found := re.fullmatch(form, name):
        run = matrix.tensor_mma(
            site, int(found[3]), int(found[4]), BYTES[found[5]], found[6], *args[:4],
            a_in_tensor=found[2] == "ts", in_pair=found[1] is not None,
        )  # fmt: skip
        return [Act(run, site)]
    form = r"tensor_mma_scaled_(pair_)?n(\d+)_\w+?_(\w+?)_ue\w+_(\w\w)"
    if found := re.fullmatch(form, name):
        run = matrix.tensor_mma(
            site, 256 if found[1] else 128, int(found[2]), BYTES[found[3]], found[4], args[0],
            args[1], args[2], args[7], a_in_tensor=False, in_pair=found[1] is not None,
            factors=args[3:5],
        )  # fmt: skip
        return [Act(run, site)]
    if name in ("tensor_copy", "tensor_copy_pair"):
        run = matrix.tensor_copy(site, args[0], args[1], in_pair=name.endswith("pair"))
        return [Act(run, site)]
    if name.startswith("tensor_commit"):
        mask = args[1] if name.endswith("multicast") else None
        return [Act(matrix.tensor_commit(site, _pointer(args[0]), mask), site, False, "commit")]
    if name.startswith("tensor_allocate"):
        return [Act(matrix.tensor_allocate(site, _pointer(args[0])), site)]
    if found := re.fullmatch(r"tensor_(load|store)_(32x32b|16x256b)_(\d+)", name):
        columns = int(found[3]) * (8 if found[2] == "16x256b" else 1)
        stores = found[1] == "store"
        address = args[0] if stores else args[1]
        array = None if stores else _pointer(args[0]).slot
        return [Act(matrix.tensor_move(site, columns, address, array, stores=stores), site)]
    if name in ("tensor_fence_before", "tensor_fence_after"):
        run = matrix.tensor_fence(site, before=name.endswith("before"))
        return [Act(run, site, False, "tensor fence")]
    if name in ("tensor_wait_loads", "tensor_wait_stores"):
        run = matrix.tensor_wait(site, stores=name.endswith("stores"))
        return [Act(run, site, False, "wait")]
    return None


def _accesses(name: str, args: Args, site: int) -> list[Act] | None:
    if found := re.fullmatch(r"ldmatrix_x(\d)(_trans)?", name):
        return _shared(site, args[1], 16, "read", 8 * int(found[1]))
    if found := re.fullmatch(r"stmatrix_x(\d)(_trans)?", name):
        return _shared(site, args[0], 16, "write", 8 * int(found[1]))
    if found := re.fullmatch(r"copy_(\d+)", name):
        size = int(found[1])
        return _shared(site, args[1], size, "read") + _shared(site, args[0], size, "write")
    if found := re.fullmatch(r"atomic_\w+_([a-z]+\d+)", name):
        return _shared(site, args[0], ITEMS.get(found[1], 4), "update")
    if name.startswith("update_bf16"):
        return _shared(site, args[0], 2, "update")
    if found := re.fullmatch(r"load_acquire_gpu_([a-z]+\d+)", name):
        return _shared(site, args[0], ITEMS[found[1]], "update")
    if found := re.fullmatch(r"cluster_load_([a-z]+\d+)", name):
        there = _pointer(args[0])
        remote = Pointer("shared", offset=there.offset, rank=args[1])  # type: ignore[arg-type]
        return _shared(site, remote, ITEMS[found[1]], "read")
    if name == "store_half_byte":
        return _shared(site, args[0], 1, "update")
    return None


def _shared(site: int, there: Operand, size: int, way: str, lanes: int = 32) -> list[Act]:
    if not isinstance(there, Pointer) or there.space != "shared":
        return []
    return [Act(do.access(site, there, size, way, lanes), site)]
