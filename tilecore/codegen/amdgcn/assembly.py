"""What the assembly of AMD GPUs says about kernels: registers, spills, memory, opcodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

_OPCODE = re.compile(r"^\s+([a-z]\w+)(?:\s|$)")


@dataclass(frozen=True, slots=True)
class Usage:
    """What one kernel uses.

    Attributes:
        vector_registers: of a lane, those for accumulation left out.
        accumulation_registers: of a lane.
        scalar_registers: of a wavefront.
        spills: registers that are kept in memory at times, of both kinds.
        scratch_bytes: of memory of its own, which a lane has.
        shared_bytes: of local data share, compiled in.
        opcodes: how often each instruction stands in the text.
    """

    vector_registers: int
    accumulation_registers: int
    scalar_registers: int
    spills: int
    scratch_bytes: int
    shared_bytes: int
    opcodes: Mapping[str, int]

    @property
    def registers(self) -> int:
        """Vector registers of a lane of both kinds, as occupancy counts them."""
        base = -(-self.vector_registers // 4) * 4 if self.accumulation_registers else 0
        return (base or self.vector_registers) + self.accumulation_registers


def read_assembly(text: str) -> dict[str, Usage]:
    """Return what each kernel of an assembly uses, by name."""
    return {name: _usage(name, text, values) for name, values in _metadata(text).items()}


def _metadata(text: str) -> dict[str, dict[str, str]]:
    """Return the fields of `.amdgpu_metadata` of each kernel."""
    start = text.find("amdhsa.kernels:")
    end = text.find(".end_amdgpu_metadata")
    kernels: dict[str, dict[str, str]] = {}
    for part in re.split(r"^  - ", text[start:end], flags=re.MULTILINE)[1:]:
        fields = dict(re.findall(r"^(?:    )?(\.\w+): +(\S+)$", part, re.MULTILINE))
        if ".name" in fields:
            kernels[fields[".name"]] = fields
    return kernels


def _usage(name: str, text: str, fields: Mapping[str, str]) -> Usage:
    def number(key: str) -> int:
        return int(fields.get(key, "0"))

    start = text.index(f"\n{name}:")
    body = text[start : text.index(".Lfunc_end", start)]
    opcodes = Counter(m.group(1) for m in map(_OPCODE.match, body.splitlines()) if m is not None)
    return Usage(
        vector_registers=number(".vgpr_count") - number(".agpr_count"),
        accumulation_registers=number(".agpr_count"),
        scalar_registers=number(".sgpr_count"),
        spills=number(".vgpr_spill_count") + number(".sgpr_spill_count"),
        scratch_bytes=number(".private_segment_fixed_size"),
        shared_bytes=number(".group_segment_fixed_size"),
        opcodes=opcodes,
    )
