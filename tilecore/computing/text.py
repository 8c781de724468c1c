"""What programs of computations have in common: how elements are read and computed, as text."""

from __future__ import annotations

import keyword
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tilecore.computing.fusion import Group
from tilecore.computing.graph import Node, Shape

FORMS: Mapping[str, str] = MappingProxyType({
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}",
    "maximum": "T.max({}, {})", "minimum": "T.min({}, {})",  # which drop a NaN: see formula
    "where": "T.if_then_else({}, {}, {})",
    "lt": "{} < {}", "le": "{} <= {}", "gt": "{} > {}", "ge": "{} >= {}", "eq": "{} == {}",
    "ne": "{} != {}", "neg": "-{}", "cast": "{}", "abs": "T.abs({})", "log2": "T.log2({})",
    **{op: f"T.{op}({{}})" for op in (
        "exp", "exp2", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos",
    )},
})  # fmt: skip
POWERS: Mapping[float, str] = MappingProxyType({
    0.5: "T.sqrt({0})", -0.5: "T.rsqrt({0})",
    **{float(n): " * ".join(["{0}"] * n) for n in range(1, 9)},
    **{float(-n): f"1.0 / ({' * '.join(['{0}'] * n)})" for n in range(1, 9)},
})  # fmt: skip
WIDE = "float32"
RESERVED = (
    "a", "b", "bx", "by", "bz", "c", "column", "i", "j", "k", "ko", "largest", "part", "q", "row",
    "scores", "shrink", "step", "threads", "tilelang", "top", "total", "v", "weights", "T",
    "block_M", "block_N", "block_K", "num_stages", *(f"{x}{n}" for x in "frv" for n in range(100)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor of a program.

    Attributes:
        name: in the program.
        node: that it holds.
        shape: as the program has it: axes that it reads alike are one.
    """

    name: str
    node: Node
    shape: Shape


@dataclass(frozen=True, slots=True)
class Program:
    """A tile program as text.

    Attributes:
        name: of its function.
        text: a module of Python with that function.
        inputs: its tensors but the last.
        output: the last one.
        space: values to choose from, by knob.
    """

    name: str
    text: str
    inputs: tuple[Parameter, ...]
    output: Parameter
    space: Mapping[str, tuple[int, ...]]


class Names:
    """Names of the tensors of a program, in the order in which it reads them."""

    def __init__(self, group: Group) -> None:
        self._read: dict[tuple[Node, Shape], Parameter] = {}
        self._taken = {"out", *RESERVED}
        self._members = {node: f"v{i}" for i, node in enumerate(group.members)}

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        """The tensors that the program reads."""
        return tuple(self._read.values())

    def of(self, node: Node) -> str:
        """Return the name of what a node of the program computes."""
        return self._members[node]

    def read(self, node: Node, shape: Shape) -> str:
        """Return the name of a tensor that is read in a shape."""
        found = self._read.get((node, shape))
        if found is None:
            plain = node.op.replace(".", "_") if node.kind == "input" else "made"
            plain = plain if plain.isidentifier() else "given"
            name, count = plain, 0
            while name in self._taken or keyword.iskeyword(name):
                count += 1
                name = f"{plain}_{count}"
            self._taken.add(name)
            found = self._read[node, shape] = Parameter(name, node, shape)
        return found.name


def view_of(
    node: Node, rows: Shape, columns: int, row: str, column: str
) -> tuple[Shape, list[str]]:
    """Return the shape in which a tensor is read, and the index of its element.

    Args:
        node: the tensor, which broadcasts to (*rows, columns).
        rows: extents of the axes but the last.
        columns: the last one.
        row: the flat index into rows.
        column: the index into columns.
    """
    shape = (*(1,) * (len(rows) + 1 - len(node.shape)), *node.shape)
    own, last = shape[:-1], shape[-1]
    found: list[int] = []
    index: list[str] = []
    if own == rows:
        found, index = [math.prod(rows)], [row]
    else:
        for axis, extent in enumerate(own):
            if extent != 1:
                found.append(extent)
                index.append(_axis(rows, axis, row))
    if last == columns and (columns != 1 or not found):
        found.append(last)
        index.append(column)
    return (tuple(found), index) if found else ((1,), ["0"])


def _axis(rows: Shape, axis: int, row: str) -> str:
    """Return the index into one axis of rows."""
    below = math.prod(rows[axis + 1 :])
    text = row if below == 1 else f"({row}) // {below}"
    return text if math.prod(rows[:axis]) == 1 else f"({text}) % {rows[axis]}"


def element(node: Node, name: str, index: Sequence[str]) -> str:
    """Return the text of an element as a float32."""
    text = f"{name}[{', '.join(index)}]"
    return text if node.dtype == WIDE else f"T.cast({text}, {WIDE!r})"


def number(value: float) -> str:
    """Return the text of a number."""
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}T.infinity({WIDE!r})"
    return repr(float(value))


def formula(node: Node, args: Sequence[str]) -> str:
    """Return the text of a function of elements."""
    if node.op == "pow":
        exponent = node.args[1]
        if not isinstance(exponent, Node) and exponent in POWERS:
            return POWERS[exponent].format(args[0])
        return f"T.pow({args[0]}, {args[1]})"
    found = FORMS[node.op].format(*args)
    if node.op in ("maximum", "minimum"):
        for arg, text in zip(node.args, args, strict=True):
            if isinstance(arg, Node):
                found = f"T.if_then_else(T.isnan({text}), {text}, {found})"
    return found


def module(group: Group, name: str, names: Names, output: Shape, knobs: str, body: str) -> str:
    """Return the text of a module with one function that makes the program."""
    tensors = [*names.inputs, Parameter("out", group.root, output)]
    arguments = "".join(
        f"        {p.name}: T.Tensor({p.shape}, {p.node.dtype!r}),\n" for p in tensors
    )
    return (
        "import tilecore as tilelang\nimport tilecore.language as T\n\n\n"
        f"@tilelang.jit(out_idx=[-1])\ndef {name}({knobs}):\n    @T.prim_func\n"
        f"    def {name}_program(\n{arguments}    ):\n{body}\n    return {name}_program\n"
    )


def indented(lines: Sequence[str], depth: int) -> str:
    """Return lines of text, each so many levels deep."""
    return "\n".join(f"{'    ' * depth}{line}" for line in lines)
