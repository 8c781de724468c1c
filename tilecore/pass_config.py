"""Pass configs of TileLang: accepted and known by name; those of ours are knobs of the lowering."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Any

# Knobs of the lowering.
FLOAT32_PRODUCTS = "float32_products"
FAST_MATH = "fast_math"
CHECK_ORDER = "check_order"
SKIPS_MASKED = "skips_masked"


class PassConfigKey(StrEnum):
    """Keys that programs pass in ``pass_configs``."""

    TL_ENABLE_FAST_MATH = "tl.enable_fast_math"
    TL_DISABLE_FAST_MATH = "tl.disable_fast_math"
    TL_DISABLE_WARP_SPECIALIZED = "tl.disable_warp_specialized"
    TL_DISABLE_TMA_LOWER = "tl.disable_tma_lower"
    TL_DISABLE_THREAD_STORAGE_SYNC = "tl.disable_thread_storage_sync"
    TL_DISABLE_DYNAMIC_TAIL_SPLIT = "tl.disable_dynamic_tail_split"
    TL_DISABLE_SAFE_MEMORY_ACCESS = "tl.disable_safe_memory_legalize"
    TL_DISABLE_VECTORIZE_256 = "tl.disable_vectorize_256"
    TL_DISABLE_WGMMA = "tl.disable_wgmma"
    TL_DISABLE_SHUFFLE_ELECT = "tl.disable_shuffle_elect"
    TL_CONFIG_INDEX_BITWIDTH = "tl.config_index_bitwidth"
    TL_DYNAMIC_ALIGNMENT = "tl.dynamic_alignment"
    TL_ENABLE_AGGRESSIVE_SHARED_MEMORY_MERGE = "tl.enable_aggressive_shared_memory_merge"
    TL_ENABLE_PTXAS_VERBOSE_OUTPUT = "tl.enable_ptxas_verbose_output"
    TL_PTXAS_REGISTER_USAGE_LEVEL = "tl.ptxas_register_usage_level"
    TL_SIMPLIFY = "tl.simplify"
    TL_AST_PRINT_ENABLE = "tl.ast_print_enable"
    TL_LAYOUT_VISUALIZATION_ENABLE = "tl.layout_visualization_enable"
    TIR_DISABLE_VECTORIZE = "tirx.disable_vectorize"
    TIR_SIMPLIFY = "tirx.Simplify"
    CUDA_KERNELS_OUTPUT_DIR = "cuda.kernels_output_dir"
    TL_SIMPLIFY_TRANSITIVELY_PROVE_INEQUALITIES = "transitively_prove_inequalities"
    TL_SIMPLIFY_CONVERT_BOOLEAN_TO_AND_OF_ORS = "convert_boolean_to_and_of_ors"
    TL_SIMPLIFY_APPLY_CONSTRAINTS_TO_BOOLEAN_BRANCHES = "apply_constraints_to_boolean_branches"
    TL_SIMPLIFY_PROPAGATE_KNOWNS_TO_PROVE_CONDITIONAL = "propagate_knowns_to_prove_conditional"
    TL_SIMPLIFY_PROPAGATE_KNOWNS_TO_SIMPLIFY_EXPRESSIONS = (
        "propagate_knowns_to_simplify_expressions"
    )
    TL_SIMPLIFY_ENABLE_LET_INLINE = "enable_simplify_let_inline"
    TL_DISABLE_BUFFER_INIT_CHECK = "tl.disable_buffer_init_check"
    TL_DISABLE_DATA_RACE_CHECK = "tl.disable_data_race_check"
    TL_DISABLE_PRELOWER_SEMANTIC_CHECK = "tl.disable_prelower_semantic_check"
    TL_DEVICE_COMPILE_FLAGS = "tl.device_compile_flags"
    TL_EMIT_LINE_DIRECTIVES = "tl.emit_line_directives"
    TL_ENABLE_REDUCER_PLAN_VERBOSE = "tl.enable_reducer_plan_verbose"
    TL_LAYOUT_COST_MODEL = "tl.layout_cost_model"
    TL_REDUCER_FORCE_BASELINE = "tl.reducer_force_baseline"
    TL_ENABLE_ASYNC_COPY = "tl.enable_async_copy"
    TL_ENABLE_LOWER_LDGSTG = "tl.enable_lower_ldgstg"
    TL_ENABLE_LOWER_LDGSTG_PREDICATED = "tl.enable_lower_ldgstg_predicated"
    TL_ENABLE_VECTORIZE_PLANNER_VERBOSE = "tl.enable_vectorize_planner_verbose"
    TL_DEBUG_MERGE_SHARED_MEMORY_ALLOCATIONS = "tl.debug_merge_shared_memory_allocations"
    TL_DISABLE_SHARED_MEMORY_REUSE = "tl.disable_shared_memory_reuse"
    TL_DISABLE_LOOP_UNSWITCHING = "tl.disable_loop_unswitching"
    TL_LOOP_UNSWITCHING_ALLOW_NON_TRIVIAL_ELSE = "tl.loop_unswitching_allow_non_trivial_else"
    TL_IF_STMT_BINDING_INLINE_REPLAYABLE_BINDS = "tl.if_stmt_binding_inline_replayable_binds"
    TL_FORCE_LET_INLINE = "tl.force_let_inline"
    TL_LAYOUT_VISUALIZATION_FORMATS = "tl.layout_visualization_formats"
    TL_STORAGE_REWRITE_DETECT_INPLACE = "tl.storage_rewrite_detect_inplace"
    TIR_ENABLE_EQUIV_TERMS_IN_CSE = "tir.enable_equiv_terms_in_cse_tir"
    TIR_DISABLE_CSE = "tirx.disable_cse_tir"
    TIR_DISABLE_STORAGE_REWRITE = "tirx.disable_storage_rewrite"
    TIR_USE_ASYNC_COPY = "tirx.use_async_copy"
    TIR_ENABLE_DEBUG = "tirx.enable_debug"
    TIR_MERGE_STATIC_SMEM = "tirx.merge_static_smem"
    TIR_ADD_LOWER_PASS = "tirx.add_lower_pass"
    TIR_NOALIAS = "tirx.noalias"
    TL_DISABLE_OUT_OF_BOUND_WARNING = "tl.disable_out_of_bound_warning"
    TL_ENABLE_DUMP_IR = "tl.enable_dump_ir"
    TL_DUMP_IR_DIR = "tl.dump_ir_path"
    TL_PASS_PROFILE = "tl.pass_profile"
    TL_PASS_PROFILE_THRESHOLD_MS = "tl.pass_profile_threshold_ms"
    TC_CHECK_ORDER = "tc.check_order"  # ours: prove the order of GPU kernels as they are compiled
    TC_FLOAT32_PRODUCTS = "tc.float32_products"  # ours: "tf32" (TileLang's way) or "exact"
    # Ours: what a mask of minus infinity hides counts nothing, even beside NaN and infinity.
    TC_SKIP_MASKED = "tc.skip_masked"


_SURROUNDING: ContextVar[Mapping[str, Any] | None] = ContextVar("pass_configs", default=None)


def surrounding_configs() -> Mapping[str, Any]:
    """Return the pass configs of the innermost ``with`` around this call."""
    return _SURROUNDING.get() or {}


@contextmanager
def pass_configs(values: Mapping[Any, Any]) -> Iterator[None]:
    """Set the pass configs of compilations in a ``with``, in place of those around it."""
    token = _SURROUNDING.set({str(k): v for k, v in values.items()})
    try:
        yield
    finally:
        _SURROUNDING.reset(token)


def lowering_config(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the knobs of the lowering that pass configs set."""
    by_name = {str(k): v for k, v in values.items()}
    found: dict[str, Any] = {}
    if PassConfigKey.TC_FLOAT32_PRODUCTS in by_name:
        found[FLOAT32_PRODUCTS] = by_name[PassConfigKey.TC_FLOAT32_PRODUCTS]
    if by_name.get(PassConfigKey.TC_CHECK_ORDER, False):
        found[CHECK_ORDER] = True
    is_off = by_name.get(PassConfigKey.TL_DISABLE_FAST_MATH, False)
    if by_name.get(PassConfigKey.TL_ENABLE_FAST_MATH, False) and not is_off:
        found[FAST_MATH] = True
    if by_name.get(PassConfigKey.TC_SKIP_MASKED, FAST_MATH in found):
        found[SKIPS_MASKED] = True
    return found


def check_pass_configs(values: Mapping[Any, Any]) -> None:
    """Warn about keys that no version of TileLang is known to have."""
    known = {str(k) for k in PassConfigKey}
    prefixes = ("tir.", "tirx.", "s_tir.")
    unknown = [str(k) for k in values if str(k) not in known and not str(k).startswith(prefixes)]
    if unknown:
        warnings.warn(
            f"unknown pass_configs {', '.join(sorted(unknown))}: ignored", UserWarning, stacklevel=4
        )
