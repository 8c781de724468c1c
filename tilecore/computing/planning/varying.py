"""Plans of calls that differ in the sizes of their tensors: when sizes vary, and which plan serves.

The first calls get kernels for their sizes. From then on extents that differed are symbols: a plan
is read for symbols (``extents``), and serves all sizes for which what it assumed holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilecore.computing import arrays
from tilecore.computing.extents import Extent, Sizes
from tilecore.computing.planning.plan import Plan

OWN_KERNELS = 2  # sets of sizes that get kernels of their own
MOST_PLANS = 64
Layout = tuple[tuple[Any, ...], tuple[Any, ...] | None]  # shape and strides of a tensor


def layouts_of(tensors: Mapping[str, Any], numbers: Mapping[str, float]) -> dict[str, Layout]:
    """Return the shapes and strides of tensors; no strides: row-major, or made so.

    ``numbers`` may vary as well: each is an extent of a tensor that is none.
    """
    found: dict[str, Layout] = {
        name: (tuple(map(int, t.shape)), arrays.strides(t)) for name, t in tensors.items()
    }
    return found | {name: ((number,), None) for name, number in numbers.items()}


@dataclass(eq=False)
class Family:
    """Calls that differ in sizes only.

    Attributes:
        always: whether all extents vary, from the first call on; floats do when they differed.
        is_fixed: whether the function cannot be read with symbols: it is not tried again.
        has_reals: whether floats may vary, or the function cannot be read with symbols of those.
    """

    always: bool = False
    is_fixed: bool = False
    has_reals: bool = True
    _first: Mapping[str, Layout] | None = None
    _count: int = 0
    _varying: set[tuple[str, int, int]] = field(default_factory=set)  # name, shape or strides, axis
    _plans: list[tuple[Sizes, Mapping[str, Layout], Plan]] = field(default_factory=list)

    def plan(self, layouts: Mapping[str, Layout]) -> Plan | None:
        """Return a plan for some sizes, if one that is there serves them."""
        for at, (sizes, pattern, plan) in enumerate(self._plans):
            values = _values(pattern, layouts)
            if values is None:
                continue
            values = sizes.complete(values)
            if sizes.hold(values):
                self._plans.insert(0, self._plans.pop(at))
                return plan.of(values)
        return None

    def symbols(self, layouts: Mapping[str, Layout]) -> tuple[Sizes, dict[str, Layout]] | None:
        """Return layouts with symbols where they vary; None: the call is to get its own kernels."""
        self._first = self._first or layouts
        self._count += 1
        for name, layout in layouts.items():
            for part, (now, first) in enumerate(zip(layout, self._first[name], strict=True)):
                pairs = zip(now or (), first or (), strict=True)
                self._varying |= {
                    (name, part, axis)
                    for axis, (n, m) in enumerate(pairs)
                    if n != m or (self.always and not isinstance(n, float))
                }
        if self.is_fixed or (not self.always and self._count <= OWN_KERNELS):
            return None
        sizes = Sizes()
        found = {
            name: tuple(self._part(sizes, name, part, of) for part, of in enumerate(layout))
            for name, layout in layouts.items()
        }
        return (sizes, found) if sizes.values else None

    def _part(self, sizes: Sizes, name: str, part: int, numbers: Sequence[int] | None) -> Any:
        """Return a shape, or strides, with symbols; extents of 1 are none: they broadcast."""
        if numbers is None:
            return None
        made = sizes.own if part else sizes.symbol

        def symbol(n: Any) -> Any:
            if isinstance(n, float):
                return sizes.own(n) if self.has_reals else n
            return made(n) if n > 1 else n

        return tuple(
            symbol(n) if (name, part, axis) in self._varying else n
            for axis, n in enumerate(numbers)
        )

    def keep(self, sizes: Sizes, pattern: Mapping[str, Layout], plan: Plan) -> None:
        """Remember a plan that was read for symbols."""
        self._plans.insert(0, (sizes, pattern, plan))
        del self._plans[MOST_PLANS:]


def _values(pattern: Mapping[str, Layout], layouts: Mapping[str, Layout]) -> dict[str, int] | None:
    """Return what symbols are in some layouts; None: these are others."""
    found: dict[str, int] = {}
    for name, parts in pattern.items():
        for wanted, given in zip(parts, layouts[name], strict=True):
            for one, number in zip(wanted or (), given or (), strict=True):
                if not isinstance(one, Extent):
                    if one != number:
                        return None
                else:
                    ((symbol,),) = one.terms
                    if found.setdefault(symbol, number) != number:
                        return None
    return found
