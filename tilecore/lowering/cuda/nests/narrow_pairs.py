"""Copies that narrow a fragment's float32: two neighbours by one instruction (sm_80).

NVIDIA's compiler makes that instruction itself of two conversions whose halves nobody else reads;
where threads compute with the narrow values later on it converts one by one, at a quarter of the
rate.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx as tir

import tilecore.lowering.cuda.instructions as ptx
from tilecore.inference.gpu.distribution import Distribution
from tilecore.inference.gpu.places import Slots, slots_of
from tilecore.inference.gpu.plan import NestPlan
from tilecore.ir.nodes import Buffer, Copy
from tilecore.lowering.cuda.access import Accessor
from tilecore.lowering.cuda.memory import FragmentPlace
from tilecore.lowering.cuda.nests.nest import NestLowering
from tilecore.lowering.tir import index

NARROW = ("bfloat16", "float16")


class PairNarrowing(NestLowering):
    """Emits a copy between fragments whose pairs of slots are neighbours in both."""

    def _points(self, leader: Any | None) -> None:
        """Emit all points of the thread, two at a time."""
        source, target = self.points.accesses
        accessor, builder = self.accessor, self.builder
        narrow = ptx.narrow_pair(str(target.buffer.dtype))
        self.loops.lanes = 2
        with self.loops.open(unrolled=True) as digits:
            found = []
            for lane in range(2):
                with self.loops.at(digits, lane):
                    memory, slot = accessor.locate(source.buffer, source.indices)
                    found.append(builder.bind(tir.BufferLoad(memory, [index(slot)])))
            with self.loops.at(digits):
                there = builder.address(*accessor.locate(target.buffer, target.indices))
            builder.evaluate(narrow.call(there, *found))


def narrows_in_pairs(accessor: Accessor, plan: NestPlan) -> bool:
    """Return whether a nest is such a copy."""
    if not isinstance(plan.points.stmt, Copy) or plan.lanes > 1 or plan.points.limits:
        return False
    if [a.is_store for a in plan.points.accesses] != [False, True]:
        return False
    source, target = plan.points.accesses
    if str(source.buffer.dtype) != "float32" or str(target.buffer.dtype) not in NARROW:
        return False
    if any(plan.distribution.is_padded(axis) for axis in range(len(plan.points.names))):
        return False
    spreads = [_spread(accessor, a.buffer) for a in (source, target)]
    if None in spreads:
        return False
    found = [
        slots_of(plan.distribution, plan.points.names, a.indices, spread)
        for a, spread in zip((source, target), spreads, strict=True)
        if spread is not None
    ]
    pairs = any(
        d.stride == 1 and not d.extent % 2 for d in plan.distribution.digits(in_thread=False)
    )
    return pairs and all(s is not None and _has_pairs(s) for s in found)


def _spread(accessor: Accessor, buffer: Buffer) -> Distribution | None:
    place = accessor.places.get(buffer)
    return place.distribution if isinstance(place, FragmentPlace) else None


def _has_pairs(slots: Slots) -> bool:
    """Return whether the first two slots lie side by side, and all others in such pairs."""
    if slots.table is not None or slots.outer or slots.base % 2:
        return False
    return all(step == 1 if stride == 1 else not step % 2 for stride, step in slots.steps.items())
