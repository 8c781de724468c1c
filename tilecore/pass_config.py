"""Pass configs of TileLang: accepted, known by name, without effect on a CPU."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from enum import StrEnum
from typing import Any


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


def check_pass_configs(values: Mapping[Any, Any]) -> None:
    """Warn about keys that no version of TileLang is known to have."""
    known = {str(k) for k in PassConfigKey}
    prefixes = ("tir.", "tirx.", "s_tir.")
    unknown = [str(k) for k in values if str(k) not in known and not str(k).startswith(prefixes)]
    if unknown:
        warnings.warn(
            f"unknown pass_configs {', '.join(sorted(unknown))}: ignored", UserWarning, stacklevel=4
        )
