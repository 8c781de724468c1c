"""What programs of computations have in common: how elements are read and computed, as text."""

from __future__ import annotations

import keyword
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tilecore.computing.extents import Extent, Sizes, varies
from tilecore.computing.graph import INTEGERS, Node, Shape, is_cut
from tilecore.computing.places import Named, Place, Places, row_major
from tilecore.computing.planning.fusion import Group
from tilecore.tile_config import KnobValue

FORMS: Mapping[str, str] = MappingProxyType({
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}",
    "where": "T.if_then_else({}, {}, {})",
    "lt": "{} < {}", "le": "{} <= {}", "gt": "{} > {}", "ge": "{} >= {}", "eq": "{} == {}",
    "ne": "{} != {}", "and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}", "not": "~{}",
    "neg": "-{}", "cast": "{}", "abs": "T.abs({})", "log2": "T.log2({})",
    **{op: f"T.{op}({{}})" for op in (
        "exp", "exp2", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos",
        "log1p", "floor", "ceil", "trunc", "round",
    )},
})  # fmt: skip
POWERS: Mapping[float, str] = MappingProxyType({
    0.5: "T.sqrt({0})", -0.5: "T.rsqrt({0})",
    **{float(n): " * ".join(["{0}"] * n) for n in range(1, 9)},
    **{float(-n): f"1.0 / ({' * '.join(['{0}'] * n)})" for n in range(1, 9)},
})  # fmt: skip
LARGEST = (2 - 2**-24) * 2.0**127  # numbers above it are infinities in float32
RESERVED = (
    "a", "at", "b", "b2", "begin", "bx", "by", "bz", "c", "c2", "column", "d", "e", "end", "first",
    "full", "group_of", "i", "j", "k", "ko", "largest", "last", "n", "named", "part", "parts",
    "products", "q", "r", "row", "rows_of", "s", "scores", "segment", "shares", "shrink", "splits",
    "step", "steps", "streams", "sums", "t", "threads", "tilelang", "top", "tops", "total",
    "totals", "turned", "turned2", "v", "value", "weights", "whole", "x", "T", "block_M", "block_N",
    "block_K", "block_P", "num_stages",
    *(f"{x}{n}" for x in ("a", "b", "b2", "c", "f", "n", "p", "r", "v") for n in range(100)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor of a program.

    Attributes:
        name: in the program.
        node: that it holds.
        place: of its elements, as the program has it: axes that it reads alike are one.
    """

    name: str
    node: Node
    place: Place

    @property
    def annotation(self) -> str:
        """What the program says of it."""
        place = self.place
        if place.is_dense:
            return f"T.Tensor({place.shape}, {self.node.dtype!r})"
        return f"T.StridedTensor({place.shape}, {place.strides}, {self.node.dtype!r})"


@dataclass(frozen=True, slots=True)
class Program:
    """A tile program as text.

    Attributes:
        name: of its function.
        text: a module of Python with that function.
        inputs: its tensors but the last ones, which are new results.
        space: values to choose from, by knob.
        sample: the text for the sizes at hand, where those of ``text`` vary.
        numbers: extents that it gets as numbers, after its inputs.
        results: the nodes of its new results.
        overwritten: the names of inputs that it writes to.
    """

    name: str
    text: str
    inputs: tuple[Parameter, ...]
    space: Mapping[str, tuple[KnobValue, ...]]
    sample: str
    numbers: tuple[Extent, ...] = ()
    results: tuple[Node, ...] = ()
    overwritten: tuple[str, ...] = ()


class Names:
    """Names of the tensors of a program, in the order in which it reads them.

    Attributes:
        places: where they lie.
        wide: the type of the program's numbers between loads and stores.
        overwritten: names of arguments that the program writes to.
    """

    def __init__(self, group: Group, places: Places) -> None:
        self.places = places
        self.wide = group.computed_in
        self.overwritten: list[str] = []
        self._read: dict[Place, Parameter] = {}
        self._made: dict[Node, Parameter] = {}
        self._taken = set(RESERVED)
        self._values = 0
        self._members = {node: f"v{i}" for i, node in enumerate(group.members)}

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        """The tensors that the program reads."""
        return tuple(self._read.values())

    @property
    def outputs(self) -> tuple[Parameter, ...]:
        """The new tensors that the program writes."""
        return tuple(self._made.values())

    def of(self, node: Node) -> str:
        """Return the name of what a node of the program computes."""
        return self._members[node]

    def fresh(self) -> str:
        """Return the name of a value that the program computes beside those of nodes."""
        self._values += 1
        return f"p{self._values}"

    def read(self, node: Node, place: Place) -> str:
        """Return the name of a tensor that is read at a place."""
        found = self._read.get(place)
        if found is None:
            memory = node if node.kind == "input" else place.memory
            plain = memory.op.replace(".", "_") if memory.kind == "input" else "made"
            name = self._free(plain if plain.isidentifier() else "given")
            found = self._read[place] = Parameter(name, node, place)
        return found.name

    def written(self, root: Node, shape: Shape) -> str:
        """Return the name of the tensor that a result is written to: an argument, or a new one.

        ``shape``: that the program gives it.
        """
        memory = self.places.of(root).memory
        place = Place(memory, 0, shape, row_major(shape))
        if memory is not root:
            found = self.read(memory, place)
            self.overwritten.append(found)
            return found
        name = self._free("out")
        self._made[root] = Parameter(name, root, place)
        return name

    def _free(self, plain: str) -> str:
        """Return a name that nothing has yet, and which is taken from now on."""
        name, count = plain, 0
        while name in self._taken or keyword.iskeyword(name):
            count += 1
            name = f"{plain}_{count}"
        self._taken.add(name)
        return name

    def element(
        self, node: Node, place: Place, rows: Shape, columns: int, row: str, column: str
    ) -> str:
        """Return the text of an element as a number, or truth; arguments are of ``view_of``."""
        if place.named is not None:
            return self._of_named(place, place.named, (rows, columns, row, column))
        view, index = view_of(place, rows, columns, row, column)
        counts = place.memory.attrs.get("counts")
        if counts is not None:
            return self._counted(counts, view, index)
        around = view.neighbours if self.places.is_on_gpu else None
        if around is not None and self.places.is_aligned(around[0]):
            view, index = around[0], [*index, str(around[1])]
        return self.as_number(node.dtype, f"{self.read(node, view)}[{', '.join(index)}]")

    def _of_named(self, place: Place, named: Named, at: tuple[Shape, int, str, str]) -> str:
        """Return the text of an element of a row that an integer names."""
        view, index = view_of(named.numbers, *at)
        number = f"{self.read(view.memory, view)}[{', '.join(index)}]"
        extents = (
            1 if n != 1 else m for n, m in zip(named.numbers.shape, place.shape, strict=True)
        )
        row = Place(place.memory, place.offset, tuple(extents), place.strides)
        view, index = view_of(row, *at)
        memory, shape, strides = view.memory, view.shape, view.strides
        rows = Place(memory, view.offset, (named.count, *shape), (named.stride, *strides))
        text = f"{self.read(memory, rows)}[{', '.join([number, *index])}]"
        return self.as_number(memory.dtype, text)

    def _counted(self, counts: tuple[int, int], view: Place, index: Sequence[str]) -> str:
        """Return the text of an element of a tensor that counts, by its index: it is not read.

        ``counts``: its first number, and the step.
        """
        first, step = counts
        steps = [
            f"({at}) * {n}" if n != 1 else f"({at})"
            for at, n in zip(index, view.strides, strict=True)
        ]
        at = " + ".join([*steps, *[str(view.offset)] * (view.offset != 0)])
        value = at if (first, step) == (0, 1) else f"{first} + ({at}) * {step}"
        return f"T.cast({value}, {self.wide!r})"

    def as_number(self, dtype: str, text: str) -> str:
        """Return the text of an element of some type as one of the program's numbers, or truth."""
        return text if dtype in (self.wide, "bool") else f"T.cast({text}, {self.wide!r})"

    def number(self, value: float | Extent) -> str:
        """Return the text of a number, or of an extent as one."""
        if isinstance(value, Extent):
            return f"T.cast({value}, {self.wide!r})"
        if math.isnan(value):
            return f"(0.0 * {self.infinity})"
        if math.isinf(value) or (self.wide == "float32" and abs(value) > LARGEST):
            return f"{'-' if value < 0 else ''}{self.infinity}"
        return repr(float(value)) if self.wide == "float32" else f"T.float64({float(value)!r})"

    @property
    def infinity(self) -> str:
        """The text of infinity."""
        return f"T.infinity({self.wide!r})"

    def formula(self, node: Node, args: Sequence[str]) -> str:
        """Return the text of a function of elements."""
        if node.op == "pow":
            exponent = node.args[1]
            if not isinstance(exponent, Node) and exponent in POWERS:
                return POWERS[exponent].format(args[0])
            return f"T.pow({args[0]}, {args[1]})"
        if node.op == "div" and not isinstance(node.args[1], Node) and node.args[1] == 0:
            infinity = self.number(math.copysign(math.inf, node.args[1]))  # no constant has it
            return f"{args[0]} * {infinity}"
        if is_cut(node):
            return self._cut(node, args[0])
        if node.op in ("maximum", "minimum"):
            return _extreme(node, args)
        return FORMS[node.op].format(*args)

    def _cut(self, node: Node, text: str) -> str:
        """Return the text of an integer, or of a float of 8 bits, as a number, which it is exactly.

        A narrow integer is what is left of 32 bits, as in torch.
        """
        is_narrow = node.dtype in INTEGERS and node.dtype not in ("int32", "int64")
        for dtype in (*["int32"] * is_narrow, node.dtype, self.wide):
            text = f"T.cast({text}, {dtype!r})"
        return text


def view_of(
    place: Place, rows: Shape, columns: int, row: str, column: str
) -> tuple[Place, list[str]]:
    """Return the place as which a tensor is read, and the index of its element.

    Args:
        place: of the tensor, which broadcasts to (*rows, columns).
        rows: extents of the axes but the last.
        columns: the last one.
        row: the flat index into rows.
        column: the index into columns.
    """
    lead = (0,) * (len(rows) + 1 - len(place.shape))
    shape, strides = (*(1 for _ in lead), *place.shape), (*lead, *place.strides)
    runs: list[tuple[int, int]] = []  # first and last of axes that are one
    is_joined = False
    for axis, extent in enumerate(shape[:-1]):
        if extent == 1:
            is_joined = is_joined and rows[axis] == 1
            continue
        if is_joined and strides[runs[-1][1]] == strides[axis] * extent:
            runs[-1] = (runs[-1][0], axis)
        else:
            runs.append((axis, axis))
        is_joined = True
    extents = [math.prod(shape[first : last + 1]) for first, last in runs]
    steps = [strides[last] for _, last in runs]
    index = [part_of(rows, first, last, row) for first, last in runs]
    if shape[-1] == columns and (columns != 1 or not runs):
        extents.append(columns)
        steps.append(strides[-1] if columns != 1 else 1)
        index.append(column)
    if not index:
        extents, steps, index = [1], [1], ["0"]
    return Place(place.memory, place.offset, tuple(extents), tuple(steps)), index


class SplitRow(str):
    """The text of a flat index whose last axes are known apart: ``outer * size + inner``.

    Of such an index divided by ``size`` TVM takes a minute to find out that it is ``outer``.

    Attributes:
        outer: the index into the axes before.
        inner: the one into the last ones, below ``size``.
        size: elements of the last ones.
    """

    __slots__ = ("inner", "outer", "size")
    outer: str
    inner: str
    size: int

    def __new__(cls, outer: str, inner: str, size: int) -> SplitRow:
        """Return the text of both."""
        found = super().__new__(cls, f"({outer}) * {size} + {inner}")
        found.outer, found.inner, found.size = outer, inner, size
        return found


def part_of(rows: Shape, first: int, last: int, row: str) -> str:
    """Return the index into some neighbouring axes of rows."""
    if isinstance(row, SplitRow):
        split = next((n for n in range(len(rows) + 1) if math.prod(rows[n:]) == row.size), None)
        if split is not None and first >= split:
            return part_of(rows[split:], first - split, last - split, row.inner)
        if split is not None and last < split:
            return part_of(rows[:split], first, last, row.outer)
    below = math.prod(rows[last + 1 :])
    text = row if below == 1 else f"({row}) // {below}"
    extent = math.prod(rows[first : last + 1])
    return text if math.prod(rows[:first]) == 1 else f"({text}) % {extent}"


def _extreme(node: Node, args: Sequence[str]) -> str:
    """Return the text of the larger or smaller one of two numbers; NaN if one of them is."""
    sign = "<" if node.op == "maximum" else ">"
    pairs = zip(node.args, args, strict=True)
    (_, x), (other, y) = sorted(pairs, key=lambda pair: not isinstance(pair[0], Node))
    may_be_nan = isinstance(other, Node) or (not varies(other) and math.isnan(other))
    test = f"({x} {sign} {y}) | T.isnan({y})" if may_be_nan else f"{x} {sign} {y}"
    return f"T.if_then_else({test}, {y}, {x})"


def program(
    group: Group, name: str, names: Names, output: Shape | None, knobs: str, body: str,
    space: Mapping[str, tuple[KnobValue, ...]] | None = None, helpers: str = "",
) -> Program:  # fmt: skip
    """Return the program of a group: a module with one function that makes it.

    Args:
        group: what it computes.
        name: of the function.
        names: of its tensors.
        output: shape of the result, which is ``out``; None: ``names`` has the results.
        knobs: parameters of the function.
        body: of the program.
        space: values to choose from, by knob; None: the recommender's own.
        helpers: text of functions that the body calls.
    """
    if output is not None:
        names.written(group.root, output)
    outputs = names.outputs
    out_idx = [at - len(outputs) for at in range(len(outputs))]
    end = f"{body}\n    return {name}_program\n"
    head = (
        "import tilecore as tilelang\nimport tilecore.language as T\n\n\n"
        f"{helpers}@tilelang.jit(out_idx={out_idx})\ndef {name}({knobs}):\n"
    )

    def top(numbers: Sequence[str] = ()) -> str:
        given = [f"{p.name}: {p.annotation}" for p in names.inputs]
        given += [*(f"{number}: T.int64" for number in numbers)]
        given += [f"{p.name}: {p.annotation}" for p in outputs]
        arguments = "".join(f"        {argument},\n" for argument in given)
        return f"    @T.prim_func\n    def {name}_program(\n{arguments}    ):\n"

    given = [n for p in names.inputs for n in (*p.place.shape, *p.place.strides)]
    operands = [a for node in group.members for a in node.args]
    made = [n for p in outputs for n in p.place.shape]
    results, over = tuple(p.node for p in outputs), tuple(names.overwritten)
    extents = [n for n in (*given, *made, *operands) if varies(n)]
    if not extents:
        text = head + top() + end
        return Program(name, text, names.inputs, space or {}, text, (), results, over)
    sizes = extents[0].sizes
    symbols = _symbols(sizes, [n for n in given if varies(n)])

    def fix(text: str) -> None:
        for extent in sizes.within(text):
            symbols.update((name, sizes.fix(name)) for name in extent.missing(symbols))

    fix(top())
    numbers = [name for n in operands if varies(n) for name in n.missing(symbols)]
    numbers = list(dict.fromkeys(numbers))
    own = dict.fromkeys(symbol for symbol in symbols.values() if isinstance(symbol, str))
    symbols |= {name: name for name in numbers}
    fix(end)
    head += "".join(f"    {symbol} = T.dynamic({symbol!r})\n" for symbol in own) + "\n" * bool(own)
    bounds = "".join(
        f"        T.assume({symbol} >= {least})\n        T.assume({symbol} <= {most})\n"
        for symbol, (least, most) in _ranges(sizes, symbols).items()
    )
    text = head + sizes.written(top(numbers), symbols) + bounds + sizes.written(end, symbols)
    sample = head + sizes.written(top() + end)
    arguments = tuple(Extent(sizes, {(number,): 1}) for number in numbers)
    return Program(name, text, names.inputs, space or {}, sample, arguments, results, over)


def _ranges(sizes: Sizes, symbols: Mapping[str, str | int]) -> dict[str, tuple[int, int]]:
    """Return the bounds of a program's symbols where they are known."""
    found = {}
    for factors, symbol in symbols.items():
        known = [sizes.ranges.get(f) for f in factors.split(" * ")]
        bounds = [one for one in known if one is not None]
        if isinstance(symbol, str) and len(bounds) == len(known):
            least, most = (math.prod(one[end] for one in bounds) for end in (0, 1))
            found[symbol] = (least, most)
    return found


def _symbols(sizes: Sizes, given: Sequence[Extent]) -> dict[str, str | int]:
    """Return by what a program names symbols, and products of them.

    Symbols are what its tensors' extents and strides are multiples of; where a tensor has a product
    of several, that is one of the program's. Others that it multiplies or adds are arguments of it;
    what it needs beside is a number, and a plan for sizes with that number alone.
    """
    found: dict[str, str | int] = {name: sizes.values[name] for name in sorted(sizes.fixed)}
    products = []
    for extent in given:
        factors, *others = extent.terms
        if others or any(f in sizes.parts for f in factors):
            continue
        if len(factors) == 1:
            found.setdefault(factors[0], factors[0])
        else:
            products.append(factors)
    for factors in products:
        if any(f not in found for f in factors):
            count = len(sizes.values) + len(found)
            found.setdefault(" * ".join(factors), f"n{count}")
    return found


def indented(lines: Sequence[str], depth: int) -> str:
    """Return lines of text, each so many levels deep."""
    return "\n".join(f"{'    ' * depth}{line}" for line in lines)
