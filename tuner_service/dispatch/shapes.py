"""What people say of dynamic shapes: texts of the command line, files of counted shapes, REST."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from db.store import SqlStore
from recommender.dispatch.question import DispatchQuestion
from recommender.errors import InvalidShapes
from recommender.hardware import HardwareProfile
from recommender.shapes import (
    SAMPLES,
    WEIGHTINGS,
    Shape,
    ShapeSet,
    Sizes,
    histogram,
    parse_sizes,
    shape_set,
)
from tilecore import kernels
from tilecore.errors import InvalidProblem
from tilecore.kernels.definition import KernelDefinition
from tilecore.utils.json_once import once
from tuner_service.errors import TooManyThreads
from tuner_service.hardware import find_hardware
from tuner_service.wiring import compile_target, host_toolchain

if TYPE_CHECKING:
    from tilecore.dispatch_table import DispatchTable


class ForDispatch(Protocol):
    """A program of the user's: a function (``dispatch_programs``) or data (``dispatch_sent``)."""

    def question(self, store: SqlStore, asked: AskedTable) -> DispatchQuestion:
        """Return the question about it in canonical form."""
        ...

    def completed(self, table: DispatchTable) -> DispatchTable:
        """Return its table with what only the program's Python tells."""
        ...


MAX_BYTES = 1 << 20
WEIGHT = "weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTable:
    """What a dispatch table is asked for, as it was written.

    Attributes:
        problem: fields of the problem that do not change.
        sizes: by dimension.
        counts: shapes (by dimension) with their weights: the shapes themselves, or, beside
            ``sizes``, what these samples weigh.
        weighting: of ranges where there are no counts.
        samples: sizes taken of each range.
        threads: cores to use; 0: all.
        hardware: name of the device; None: this host.
        program: of a kernel that is not of the library.
    """

    kernel: str
    problem: Mapping[str, Any]
    sizes: Mapping[str, Sizes] = field(default_factory=dict)
    counts: Sequence[tuple[Mapping[str, int], float]] = ()
    weighting: str = "log"
    samples: int = SAMPLES
    threads: int = 0
    hardware: str | None = None
    program: ForDispatch | None = None

    @property
    def dims(self) -> Sequence[str]:
        """Names of the dimensions that have several sizes."""
        return list(self.sizes or (self.counts[0][0] if self.counts else ()))


def understand_table(store: SqlStore, asked: AskedTable) -> DispatchQuestion:
    """Return the question in canonical form.

    Raises:
        UnknownKernel, InvalidProblem, UnknownHardware, TooManyThreads: as for recommendations
            (TC501, TC502, RC601, SV907).
        InvalidShapes: no dimension is dynamic, or the shapes cannot be used (RC611).
        TileError: of a program, what its ``question`` raises.
    """
    if asked.program is not None:
        return asked.program.question(store, asked)
    definition = kernels.get(asked.kernel)
    device = known_device(store, asked)
    definition = definition.on(device.kind)
    dimensions = {f.name: f.aliases for f in definition.fields if f.kind == "dimension"}
    shapes = shapes_of(asked, dimensions, lambda dims: _tiles(definition, device.kind, dims))
    fixed: dict[str, Any] = {}
    for shape in shapes.shapes:
        sizes = dict(zip(shapes.dims, shape, strict=True))
        canonical = definition.parse_problem({**asked.problem, **sizes})
        fixed = {name: value for name, value in canonical.items() if name not in sizes}
    return DispatchQuestion(
        definition=definition, fixed=fixed, shapes=shapes, hardware=device,
        toolchain=host_toolchain().on(device.kind), target=compile_target(device),
        threads=asked.threads,
    )  # fmt: skip


def known_device(store: SqlStore, asked: AskedTable) -> HardwareProfile:
    """Return the device that a table is for.

    Raises:
        UnknownHardware: nobody knows it (RC601).
        TooManyThreads: more threads than it has cores (SV907).
    """
    device = find_hardware(store, asked.hardware)
    if not 0 <= asked.threads <= device.cores:
        raise TooManyThreads(cores=device.cores, hardware=device.name, found=asked.threads)
    return device


def shapes_of(
    asked: AskedTable, dimensions: Mapping[str, Sequence[str]],
    tiles: Callable[[Sequence[str]], Mapping[str, Sequence[int]]] = lambda dims: {},
) -> ShapeSet:  # fmt: skip
    """Return the shapes that are asked for.

    Args:
        asked: sizes and counts.
        dimensions: the names that dimensions have, and other spellings of each.
        tiles: (dimensions) -> the tile sizes that each is cut into.

    Raises:
        InvalidProblem: there is no such dimension (TC502).
        InvalidShapes: none is dynamic, or the shapes cannot be used (RC611).
    """
    sizes = {_dimension(dimensions, name): of_dim for name, of_dim in asked.sizes.items()}
    if len(sizes) < len(asked.sizes):
        raise InvalidShapes(where="sizes", expected="each dimension once", found="two spellings")
    counts = [
        ({_dimension(dimensions, name): size for name, size in shape.items()}, weight)
        for shape, weight in asked.counts
    ]
    dims = tuple(name for name in dimensions if name in (sizes or (counts and counts[0][0])))
    if not dims:
        expected = "a dimension with several sizes (--m 1:4096, or a file of weights)"
        raise InvalidShapes(where=asked.kernel, expected=expected, found="none")
    ordered = {dim: sizes[dim] for dim in dims if dim in sizes}
    samples = None
    if sizes:
        samples = shape_set(
            ordered, tiles=tiles(dims), samples=asked.samples, weighting=asked.weighting
        )
    if not counts:
        assert samples is not None
        return samples
    weights: dict[Shape, float] = {}
    for shape, weight in counts:
        if set(shape) != set(dims):
            expected, found = f"sizes of {', '.join(dims)}", ", ".join(shape) or "none"
            raise InvalidShapes(where="weights", expected=expected, found=found)
        if min(shape.values()) < 1 or not weight >= 0:
            expected = "sizes from 1 up and weights from 0 up"
            raise InvalidShapes(where="weights", expected=expected, found=f"{shape}: {weight}")
        key = tuple(shape[dim] for dim in dims)
        weights[key] = weights.get(key, 0.0) + weight
    return histogram(dims, weights, samples)


def _dimension(dimensions: Mapping[str, Sequence[str]], name: str) -> str:
    for known, aliases in dimensions.items():
        if name.lower() in (n.lower() for n in (known, *aliases)):
            return known
    dims = ", ".join(dimensions) or "none"
    raise InvalidProblem(field=name, expected=f"a dimension: one of {dims}", found="none of them")


def _tiles(
    definition: KernelDefinition, kind: str, dims: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """Return the tile sizes that a dimension is cut into, as far as a knob's name tells them."""
    knobs = {knob.name.lower(): knob for knob in definition.knobs_of(kind)}
    found = {dim: knobs.get(f"block_{dim}") for dim in dims}
    return {
        dim: tuple(int(v) for v in knob.values_on(kind))
        for dim, knob in found.items()
        if knob is not None
    }


def split_sizes(
    definition: KernelDefinition, given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Sizes]]:
    """Return the fields of a problem that have one value, and the sizes of those with several."""
    names = {
        n.lower() for f in definition.fields if f.kind == "dimension" for n in (f.name, *f.aliases)
    }
    sizes = {
        name: parse_sizes(name, text)
        for name, text in given.items()
        if isinstance(text, str) and name.lower() in names
    }
    several = {n: s for n, s in sizes.items() if s.is_range or len(s.values) > 1}
    single = {n: s.values[0] for n, s in sizes.items() if n not in several}
    fixed = {n: single.get(n, value) for n, value in given.items() if n not in several}
    return fixed, several


def read_weights(text: str) -> tuple[str, Sequence[tuple[dict[str, int], float]]]:
    """Return how a range weighs, or the counted shapes of a file: CSV or JSON.

    CSV has a column per dimension and one called ``weight``; JSON is a list of such objects.

    Raises:
        InvalidShapes: neither "log" nor "uniform" nor a file of shapes (RC611).
    """
    if text in WEIGHTINGS:
        return text, ()
    path = Path(text)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        content = path.read_text(encoding="utf-8-sig")  # spreadsheets begin with a mark
        is_json = path.suffix == ".json"
        rows = json.loads(content, object_pairs_hook=once) if is_json else _csv(content)
        if not isinstance(rows, list):
            raise ValueError(f"{type(rows).__name__} instead of a list")
        if not rows:
            raise ValueError("no shape in it")
        return "log", [_counted(number, row) for number, row in enumerate(rows, 1)]
    except (OSError, ValueError, csv.Error, RecursionError) as error:
        found = getattr(error, "strerror", None) or str(error)
        expected = f"{' or '.join(WEIGHTINGS)}, or a CSV or JSON file of sizes and `{WEIGHT}`"
        raise InvalidShapes(where=text, expected=expected, found=found) from error


def _csv(content: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for line, row in enumerate(csv.DictReader(content.splitlines(), strict=True), 2):
        if None in row or None in row.values():
            raise ValueError(f"line {line} with other columns than the first")
        found.append({name.strip(): value.strip() for name, value in row.items()})
    return found


def _counted(number: int, row: Any) -> tuple[dict[str, int], float]:
    if not isinstance(row, dict) or len(row) < 2 or WEIGHT not in row:
        raise ValueError(f"entry {number} without sizes or `{WEIGHT}`")
    numbers = {k: v for k, v in row.items() if not isinstance(v, bool) and v is not None}
    try:
        weight = float(numbers.pop(WEIGHT))
        return {name: int(str(value)) for name, value in numbers.items()}, weight
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"entry {number}: {row}, which are not all numbers") from error
