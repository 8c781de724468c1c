"""The tile language: ``import tilecore.language as T``."""

from __future__ import annotations

from typing import Any

from tilecore.ir.dtype import BITS
from tilecore.ir.expr import Expr as PrimExpr
from tilecore.ir.expr import Var
from tilecore.ir.nodes import PrimFunc
from tilecore.ir.vector import VectorType
from tilecore.language import branch, gpu, numeric, operators, pointer
from tilecore.language.allocate import (
    alloc_buffer,
    alloc_fragment,
    alloc_global,
    alloc_local,
    alloc_shared,
    alloc_var,
)
from tilecore.language.allreduce import attr, comm_reducer, tvm_thread_allreduce
from tilecore.language.annotate import (
    Fragment,
    Layout,
    annotate_layout,
    annotate_safe_value,
    assume,
    device_assert,
    use_swizzle,
)
from tilecore.language.atomic import (
    atomic_add,
    atomic_addx2,
    atomic_addx4,
    atomic_load,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_store,
)
from tilecore.language.attributes import (
    annotate_compile_flags,
    annotate_l2_hit_ratio,
    annotate_min_blocks_per_sm,
    annotate_pass_configs,
    func_attr,
)
from tilecore.language.binding import launch_thread, let, thread_binding
from tilecore.language.copy import clear, copy, fill
from tilecore.language.dtypes import (
    ALIASES,
    DataType,
    bfloat16,
    dtype,
    float4_e2m1fn,
    float8_e4m3,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float8_e8m0fnu,
    float16,
    float32,
    float64,
    int4,
    int8,
    int16,
    int32,
    int64,
    resolve_torch_storage_dtype,
    tfloat32,
    torch_names,
    uint4,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tilecore.language.foreign import (
    call_extern,
    call_intrin,
    call_pure_extern,
    call_pure_intrin,
    ffs,
    import_source,
    ldg,
)
from tilecore.language.fp8 import determine_fp8_type, determine_torch_fp8_type
from tilecore.language.gemm import GemmWarpPolicy, gemm
from tilecore.language.gpu import *  # noqa: F403
from tilecore.language.ieee import (
    fast_rcp,
    fma,
    fmul,
    ieee_add,
    ieee_fdiv,
    ieee_fmaf,
    ieee_frcp,
    ieee_frsqrt,
    ieee_fsqrt,
    ieee_mul,
    ieee_sub,
)
from tilecore.language.kernel import ClusterKernel, Kernel, Ref, macro, prim_func
from tilecore.language.lane_matrix import ptx_mma
from tilecore.language.loop import (
    Parallel,
    Persistent,
    Pipelined,
    While,
    grid,
    loop_break,
    serial,
    thread_return,
    unroll,
    vectorized,
)
from tilecore.language.math import (
    Cast,
    Select,
    abs,
    acos,
    align_up,
    asin,
    atan,
    atan2,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    cast,
    cdiv,
    ceil,
    ceildiv,
    clamp,
    cos,
    cosh,
    erf,
    exp,
    exp2,
    exp10,
    floor,
    floordiv,
    floormod,
    fma_halves,
    fmod,
    if_then_else,
    index_to_coordinates,
    infinity,
    isfinite,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    log10,
    max,
    max_value,
    min,
    min_value,
    nearbyint,
    pow,
    reinterpret,
    round,
    rsqrt,
    shift_left,
    shift_right,
    sigmoid,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
    trunc,
)
from tilecore.language.movement import c2d_im2col, im2col, transpose
from tilecore.language.output import print
from tilecore.language.random import rng_init, rng_rand, rng_rand_float
from tilecore.language.reduce import (
    all_of,
    any_of,
    cummax,
    cumsum,
    reduce,
    reduce_absmax,
    reduce_abssum,
    reduce_bitand,
    reduce_bitor,
    reduce_bitxor,
    reduce_max,
    reduce_min,
    reduce_sum,
)
from tilecore.language.reducer import (
    alloc_reducer,
    finalize_reducer,
    reducer_init,
    reducer_update,
)
from tilecore.language.source_kernel import CUDASourceCodeKernel
from tilecore.language.sparse import gemm_sp, tcgen05_gemm_sp, wgmma_gemm_sp
from tilecore.language.sync import (
    named_barrier_arrive,
    sync_grid,
    sync_threads,
    sync_warp,
    tvm_storage_sync,
)
from tilecore.language.tensor import (
    Buffer,
    FragmentBuffer,
    LocalBuffer,
    SharedBuffer,
    StridedTensor,
    Tensor,
    const,
    dynamic,
    empty,
)
from tilecore.language.thread import (
    activemask,
    all_sync,
    any_sync,
    ballot,
    ballot_sync,
    dp4a,
    evaluate,
    get_block_binding,
    get_block_bindings,
    get_block_extent,
    get_block_extents,
    get_lane_idx,
    get_thread_binding,
    get_thread_bindings,
    get_thread_extent,
    get_thread_extents,
    get_warp_group_idx,
    get_warp_idx,
    get_warp_idx_sync,
    shfl_down,
    shfl_sync,
    shfl_up,
    shfl_xor,
    shuffle_elect,
    syncthreads_and,
    syncthreads_count,
    syncthreads_or,
    tvm_warp_activemask,
    tvm_warp_shuffle,
    tvm_warp_shuffle_down,
    tvm_warp_shuffle_up,
    warp_reduce_bitand,
    warp_reduce_bitor,
    warp_reduce_max,
    warp_reduce_min,
    warp_reduce_sum,
)
from tilecore.language.unavailable import unknown
from tilecore.language.vector import (
    BY_WIDTH,
    Broadcast,
    Ramp,
    Shuffle,
    abs2,
    add2,
    extract_lane,
    fma2,
    max2,
    min2,
    mul2,
    sub2,
)
from tilecore.language.view import (
    handle,
    make_tensor,
    make_tensor_from_addr,
    match_buffer,
    ptr,
    reshape,
    view,
)
from tilecore.language.warp import fns, match_all_sync, match_any_sync

symbolic = dynamic
_all_dtypes = tuple(BITS)  # public programs import it by this name
# Functions whose names begin with two underscores in CUDA: quick ones, computed here as others.
INTRINSICS = {
    "__exp": exp, "__exp10": exp10, "__log": log, "__log2": log2, "__log10": log10, "__tan": tan,
    "__cos": cos, "__sin": sin, "__ldg": ldg, "__ffs": ffs, "__fns": fns,
    "__popc": numeric.popcount, "__clz": numeric.clz,
}  # fmt: skip
Serial, Unroll, Vectorized, parallel = serial, unroll, vectorized, Parallel

__all__ = [
    "Buffer", "Cast", "Fragment", "GemmWarpPolicy", "Kernel", "Layout", "Parallel", "Persistent",
    "Pipelined",
    "PrimExpr", "PrimFunc", "Select", "Serial", "Tensor", "Unroll", "Var", "Vectorized", "abs",
    "acos", "all_of", "alloc_fragment", "alloc_local", "alloc_reducer", "alloc_shared", "alloc_var",
    "annotate_layout", "annotate_safe_value", "any_of", "asin", "assume", "atan", "atan2",
    "atomic_add", "atomic_addx2", "atomic_addx4", "atomic_load", "atomic_max", "atomic_min",
    "atomic_or", "atomic_store", "bfloat16", "bitwise_and", "bitwise_or", "bitwise_xor",
    "c2d_im2col", "cast", "cdiv", "ceil", "ceildiv", "clamp", "clear", "const", "copy", "cos",
    "cosh", "cummax", "cumsum", "device_assert", "DataType", "dtype", "dynamic", "empty", "erf",
    "exp", "exp10", "exp2", "fill", "finalize_reducer", "float16", "float32", "float64",
    "float8_e4m3",
    "float8_e4m3fn", "float8_e5m2", "floor", "floordiv", "floormod", "fma_halves", "fmod",
    "func_attr", "gemm", "grid",
    "if_then_else", "im2col", "infinity", "int16", "int32", "int64", "int8", "isfinite", "isinf",
    "isnan", "log", "log10", "log1p", "log2", "macro", "max", "max_value", "min", "min_value",
    "nearbyint", "parallel", "pow", "prim_func", "print", "reduce", "reduce_absmax",
    "reduce_abssum", "reduce_bitand", "reduce_bitor", "reduce_bitxor", "reduce_max", "reduce_min",
    "reduce_sum", "reducer_init", "reducer_update", "reinterpret", "round", "rsqrt", "serial",
    "shift_left", "shift_right", "sigmoid", "sin", "sinh", "sqrt", "symbolic", "tan", "tanh",
    "transpose", "trunc", "uint16", "uint32", "uint64", "uint8", "unroll", "use_swizzle",
    "vectorized",
    # programs written per thread
    "activemask", "all_sync", "any_sync", "attr", "ballot", "ballot_sync", "comm_reducer", "dp4a",
    "evaluate", "get_block_binding", "get_block_bindings", "get_block_extent", "get_block_extents",
    "get_lane_idx", "get_thread_binding", "get_thread_bindings", "get_thread_extent",
    "get_thread_extents", "get_warp_group_idx", "get_warp_idx", "get_warp_idx_sync", "shfl_down",
    "shfl_sync", "shfl_up", "shfl_xor", "shuffle_elect", "sync_threads", "sync_warp",
    "syncthreads_and", "syncthreads_count", "syncthreads_or", "tvm_storage_sync",
    "tvm_thread_allreduce",
    "tvm_warp_activemask", "tvm_warp_shuffle", "tvm_warp_shuffle_down", "tvm_warp_shuffle_up",
    "warp_reduce_bitand", "warp_reduce_bitor", "warp_reduce_max", "warp_reduce_min",
    "warp_reduce_sum",
]  # fmt: skip
__all__ += [
    "FragmentBuffer", "LocalBuffer", "Ref", "SharedBuffer", "StridedTensor", "align_up",
    "alloc_global",
    "Broadcast", "Ramp", "Shuffle", "abs2", "add2", "extract_lane", "fma2", "max2", "min2",
    "mul2", "sub2", "alloc_buffer",
    "resolve_torch_storage_dtype", "call_extern", "call_intrin",
    "call_pure_extern",
    "call_pure_intrin", "import_source",
    "annotate_l2_hit_ratio", "annotate_min_blocks_per_sm", "determine_fp8_type",
    "determine_torch_fp8_type", "float4_e2m1fn", "index_to_coordinates", "int4",
    "launch_thread", "let",
    "rng_init", "rng_rand",
    "rng_rand_float", "thread_binding", "thread_return", "uint4", "While",
    "match_all_sync", "match_any_sync", "fast_rcp", "fma", "fmul", "ieee_add", "ieee_fdiv",
    "ieee_fmaf", "ieee_frcp", "ieee_frsqrt", "ieee_fsqrt", "ieee_mul", "ieee_sub", "gemm_sp",
    "tcgen05_gemm_sp", "wgmma_gemm_sp",
    "annotate_compile_flags", "annotate_pass_configs", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e8m0fnu", "func_attr", "handle", "loop_break", "tfloat32",
    "make_tensor", "make_tensor_from_addr", "match_buffer", "ptr", "ptx_mma", "reshape", "view",
]  # fmt: skip

__all__ += ["CUDASourceCodeKernel", "ClusterKernel", "named_barrier_arrive", "sync_grid"]
__all__ += gpu.__all__


def __getattr__(name: str) -> Any:
    if name in ALIASES:
        return ALIASES[name]
    if name == "_TORCH_DTYPE_TO_STR":
        return torch_names()
    for module in (branch, numeric, operators, pointer):
        if name in module.__all__:
            return getattr(module, name)
    for known in (INTRINSICS, BY_WIDTH):
        if name in known:
            return known[name]
    lanes = VectorType.parse(name)
    if lanes is not None:
        return lanes
    if name.startswith("_") and (not name.startswith("__") or name.endswith("__")):  # no primitive
        raise AttributeError(f"module 'tilecore.language' has no attribute {name!r}")
    raise unknown(name, __all__)
