"""What a config may fix of the CPU lowering; everything else is inferred."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilecore.errors import InvalidConfig
from tilecore.pass_config import SKIPS_MASKED, lowering_config
from tilecore.target import Target
from tilecore.tile_config import KnobValue

PACK_A = ("auto", "none", "rows", "block")
PACK_B = ("auto", "block", "grid", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuOptions:
    """Knobs of the CPU lowering.

    Attributes:
        micro_m: rows of the register tile (0: inferred).
        micro_n: vectors per row of the register tile (0: inferred).
        pack_a: "block" copies the broadcast operand's tile to scratch, "rows" each group of its
            rows right before the panels of the vector operand use it, "none" reads it in place.
        pack_b: "block" packs the vector operand's tile in every block, "grid" once per call,
            "none" not where few rows use it (it is read in place).
        keep: name of the tensor behind a vector operand that its caller keeps packed from call to
            call; "": none.
        skips_masked: what a mask of minus infinity hides counts nothing, even beside NaN and Inf.
    """

    micro_m: int = 0
    micro_n: int = 0
    pack_a: str = "auto"
    pack_b: str = "auto"
    keep: str = ""
    skips_masked: bool = False

    @classmethod
    def parse(
        cls, config: Mapping[str, KnobValue], target: Target, attrs: Mapping[str, Any]
    ) -> CpuOptions:
        """Return the lowering knobs of a config; knobs of the program itself are skipped.

        ``attrs``: of the program, with what ``T.annotate_pass_configs`` says where the config does
        not.

        Raises:
            InvalidConfig: a value is out of range or breaks the register budget (TC303).
        """
        values: dict[str, int | str | bool] = {}
        for knob, top in (("micro_m", 30), ("micro_n", 8)):
            value = config.get(knob, 0)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= top:
                raise InvalidConfig(knob=knob, value=value, expected=f"an integer from 0 to {top}")
            values[knob] = value
        for knob, choices in (("pack_a", PACK_A), ("pack_b", PACK_B)):
            text = config.get(knob, "auto")
            if text not in choices:
                raise InvalidConfig(knob=knob, value=text, expected=f"one of {', '.join(choices)}")
            values[knob] = str(text)
        values["keep"] = str(config.get("keep", ""))
        annotated = lowering_config(attrs.get("tilelang_pass_configs") or {})
        skips = config.get(SKIPS_MASKED, annotated.get(SKIPS_MASKED, False))
        if not isinstance(skips, bool):
            raise InvalidConfig(knob=SKIPS_MASKED, value=skips, expected="True or False")
        values[SKIPS_MASKED] = skips
        options = cls(**values)  # type: ignore[arg-type]
        given = options.micro_m and options.micro_n
        if given and not target.micro_tile_fits(options.micro_m, options.micro_n):
            raise InvalidConfig(
                knob="micro_m",
                value=options.micro_m,
                expected=f"micro_m * micro_n + micro_n + 1 <= {target.vector_registers} "
                f"(with micro_n={options.micro_n})",
            )
        return options
