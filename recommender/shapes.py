"""Shapes that a dispatch table is made for: sizes people name, ranges sampled, weights."""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from recommender.errors import InvalidShapes

SAMPLES = 32  # sizes taken of a range, unless more or fewer are asked for
MAX_SHAPES = 256
WEIGHTINGS = ("log", "uniform")
_RANGE = re.compile(r"([0-9]{1,30}):([0-9]{1,30})")
_LIST = re.compile(r"[0-9]{1,30}(,[0-9]{1,30})*")
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Values of one dimension: all that are named, or a range to sample."""

    values: tuple[int, ...] = ()
    low: int = 0
    high: int = 0

    @property
    def is_range(self) -> bool:
        """Whether the values are yet to be chosen."""
        return not self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSet:
    """Shapes in ascending order, each with its share of the calls.

    Attributes:
        dims: names of the dimensions.
        shapes: a size per dimension.
        weights: of the shapes, together 1.
    """

    dims: tuple[str, ...]
    shapes: tuple[Shape, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, dims: Sequence[str], weights: Mapping[Shape, float]) -> ShapeSet:
        """Return the set of shapes with these weights.

        Raises:
            InvalidShapes: none, too many, or weights that are no share (RC611).
        """
        if not 1 <= len(weights) <= MAX_SHAPES:
            raise InvalidShapes(where="shapes", expected=f"1 to {MAX_SHAPES}", found=len(weights))
        for shape, weight in weights.items():
            if not (math.isfinite(weight) and weight >= 0):
                raise InvalidShapes(
                    where=f"weight of {named(dims, shape)}", expected="a number from 0 up",
                    found=weight,
                )  # fmt: skip
        total = math.fsum(weights.values())
        if not 0 < total < math.inf:
            raise InvalidShapes(where="weights", expected="a sum above 0", found=total)
        shapes = tuple(sorted(weights))
        return cls(
            dims=tuple(dims), shapes=shapes, weights=tuple(weights[s] / total for s in shapes)
        )


def named(dims: Sequence[str], shape: Shape) -> str:
    """Return a shape as people read it: ``m=16, n=4096``."""
    return ", ".join(f"{dim}={size}" for dim, size in zip(dims, shape, strict=True))


def parse_sizes(dim: str, text: str) -> Sizes:
    """Return the sizes that a text names: ``1:4096`` (a range), ``1,16,100`` or ``128``.

    Raises:
        InvalidShapes: it is none of these, or a size is out of range (RC611).
    """
    from tilecore.kernels.definition import MAX_DIMENSION  # loads all kernels

    found = _RANGE.fullmatch(text.replace(" ", ""))
    if found is not None:
        low, high = int(found[1]), int(found[2])
        if not 1 <= low <= high <= MAX_DIMENSION:
            expected = f"1 <= first <= last <= {MAX_DIMENSION}"
            raise InvalidShapes(where=dim, expected=expected, found=text)
        return Sizes(values=(low,)) if low == high else Sizes(low=low, high=high)
    if _LIST.fullmatch(text.replace(" ", "")) is None:
        raise InvalidShapes(
            where=dim, expected="sizes as FIRST:LAST, A,B,... or a number", found=repr(text)
        )
    values = tuple(sorted({int(part) for part in text.replace(" ", "").split(",")}))
    if values[0] < 1 or values[-1] > MAX_DIMENSION:
        raise InvalidShapes(where=dim, expected=f"sizes from 1 to {MAX_DIMENSION}", found=text)
    return Sizes(values=values)


def shape_set(
    sizes: Mapping[str, Sizes], *, tiles: Mapping[str, Sequence[int]] | None = None,
    samples: int = SAMPLES, weighting: str = "log",
) -> ShapeSet:  # fmt: skip
    """Return all combinations of the sizes of several dimensions.

    Args:
        sizes: by dimension.
        tiles: by dimension, tile sizes whose multiples are worth a sample.
        samples: sizes taken of each range.
        weighting: how calls spread over a range: "log" (evenly over its powers of two) or
            "uniform" (over its integers). Sizes that were named weigh the same.

    Raises:
        InvalidShapes: too many combinations, or no such weighting (RC611).
    """
    if weighting not in WEIGHTINGS:
        expected = f"one of {', '.join(WEIGHTINGS)}"
        raise InvalidShapes(where="weights", expected=expected, found=repr(weighting))
    axes = []
    for dim, of_dim in sizes.items():
        if of_dim.is_range:
            chosen = sample_range(of_dim.low, of_dim.high, (tiles or {}).get(dim, ()), samples)
            axes.append(_shares(chosen, of_dim.low, of_dim.high, weighting))
        else:
            axes.append(dict.fromkeys(of_dim.values, 1.0))
    count = math.prod(len(axis) for axis in axes)
    if count > MAX_SHAPES:
        expected = f"at most {MAX_SHAPES} combinations (fewer `samples`)"
        raise InvalidShapes(where="shapes", expected=expected, found=count)
    return ShapeSet.of(
        tuple(sizes),
        {
            tuple(size for size, _ in point): math.prod(share for _, share in point)
            for point in itertools.product(*(axis.items() for axis in axes))
        },
    )


def histogram(
    dims: Sequence[str], counts: Mapping[Shape, float], samples: ShapeSet | None = None
) -> ShapeSet:
    """Return the shapes that were counted, or those of ``samples`` with what lies nearest to each.

    Raises:
        InvalidShapes: see ``ShapeSet.of``.
    """
    if samples is None:
        return ShapeSet.of(dims, counts)
    weights = dict.fromkeys(samples.shapes, 0.0)
    for shape, count in counts.items():
        weights[nearest(samples.shapes, shape)] += count
    return ShapeSet.of(dims, weights)


def nearest(shapes: Sequence[Shape], shape: Shape) -> Shape:
    """Return the shape that is nearest in the logarithms of its sizes; of two the smaller."""
    return min(shapes, key=lambda s: (_distance(s, shape), s))


def _distance(a: Shape, b: Shape) -> float:
    return round(sum(math.log2(x / y) ** 2 for x, y in zip(a, b, strict=True)), 12)


def sample_range(low: int, high: int, tiles: Sequence[int] = (), count: int = SAMPLES) -> list[int]:
    """Return up to ``count`` sizes from ``low`` to ``high`` where costs of tiled kernels change.

    First the ends and powers of two; then, each time those farthest from what there is, one more
    than powers of two (the first size that starts a new tile), midpoints between powers of two,
    tile sizes, their multiples and what follows these, and one less than powers of two.
    """
    powers = [1 << i for i in range(high.bit_length())]
    multiples = [t * i for t in tiles for i in range(1, min(high // t, 8) + 1)]
    classes: list[Iterable[int]] = [
        [low, high],
        powers,
        [p + 1 for p in powers],
        [p + p // 2 for p in powers if p > 1],
        [*multiples, *(m + 1 for m in multiples)],
        [p - 1 for p in powers],
    ]
    chosen: list[int] = []
    for candidates in classes:
        left = sorted({c for c in candidates if low <= c <= high} - set(chosen))
        while left and len(chosen) < max(2, count):
            best = max(left, key=lambda size: (_gap(chosen, size), -size))
            left.remove(best)
            bisect.insort(chosen, best)
    return chosen


def _gap(chosen: Sequence[int], size: int) -> float:
    """Return how far a size is from the nearest chosen one, in powers of two."""
    at = bisect.bisect(chosen, size)
    near = chosen[max(0, at - 1) : at + 1]
    return min((abs(math.log2(size / other)) for other in near), default=math.inf)


def _shares(chosen: Sequence[int], low: int, high: int, weighting: str) -> dict[int, float]:
    """Return the share of a range that lies nearest to each of its samples."""
    ends = [math.sqrt(a * b) for a, b in itertools.pairwise(chosen)]
    cells = list(itertools.pairwise([low - 0.5, *ends, high + 0.5]))
    if weighting == "log":
        return {s: math.log(b / a) for s, (a, b) in zip(chosen, cells, strict=True)}
    return {s: b - a for s, (a, b) in zip(chosen, cells, strict=True)}
