"""What a config may fix of the GPU lowering; everything else is inferred."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilecore.errors import InvalidConfig
from tilecore.pass_config import CHECK_ORDER, FAST_MATH, FLOAT32_PRODUCTS, lowering_config

CHOICES = ("tf32", "exact")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOptions:
    """Knobs of the GPU lowering.

    Attributes:
        float32_products: "tf32" lets tensor cores multiply float32 operands, of which they read
            11 significant bits; "exact" takes multiply-adds of all 24.
        fast_math: whether NVIDIA's compiler may take its approximate functions and divisions
            (``--use_fast_math``), as TileLang does where ``tl.enable_fast_math`` is set.
        check_order: whether the order of the finished kernels is proven (tilecore.ordering), which
            takes longer than to generate them (benchmarks/order_latency.py).
    """

    float32_products: str = "tf32"
    fast_math: bool = False
    check_order: bool = False

    @classmethod
    def parse(cls, config: Mapping[str, Any], attrs: Mapping[str, Any]) -> GpuOptions:
        """Return the knobs of a config, or else of the program's ``T.annotate_pass_configs``.

        Raises:
            InvalidConfig: there is no such choice (TC303).
        """
        annotated = lowering_config(attrs.get("tilelang_pass_configs") or {})
        merged = {**annotated, **config}
        given, fast = merged.get(FLOAT32_PRODUCTS, "tf32"), merged.get(FAST_MATH, False)
        if given not in CHOICES:
            raise InvalidConfig(
                knob=FLOAT32_PRODUCTS, value=given, expected=f"one of {', '.join(CHOICES)}"
            )
        check = merged.get(CHECK_ORDER, False)
        for knob, value in ((FAST_MATH, fast), (CHECK_ORDER, check)):
            if not isinstance(value, bool):
                raise InvalidConfig(knob=knob, value=value, expected="True or False")
        return cls(float32_products=given, fast_math=fast, check_order=check)
