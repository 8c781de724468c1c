"""Right operands that the kernel of a product computes, as of weights of 4 or 8 bits and scales.

A product of few rows takes as long as reading its right operand. Where that is plain arithmetic of
tensors that are there, or what is unpacked of their bits, the kernel reads these, and what they are
converted to is never stored. For more rows a kernel of its own stores what is unpacked.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tilecore.computing.calls import Hole
from tilecore.computing.extents import present, varies
from tilecore.computing.graph import (
    FLOATS,
    INTEGERS,
    Node,
    Shape,
    bytes_of,
    consumers,
    ordered,
    rewritten_beside,
    viewed,
    with_args,
)
from tilecore.computing.planning import digits
from tilecore.computing.planning.digits import Index
from tilecore.ir.dtype import DType

OPERATIONS = ("cast", "add", "sub", "mul", "div", "neg")
OF_BITS: Mapping[str, str] = MappingProxyType({
    "and": "&", "bitwise_and": "&", "or": "|", "bitwise_or": "|", "xor": "^", "bitwise_xor": "^",
    "rshift": ">>", "bitwise_right_shift": ">>", "lshift": "<<", "bitwise_left_shift": "<<",
    "add": "+", "sub": "-", "mul": "*",
})  # fmt: skip
CONVERSIONS = ("to", "type", "char", "byte", "short", "int", "long")
WHOLE = (slice(None), None, Ellipsis)  # what indices of all elements are made of
LOOK_UPS = ("__getitem__", "index")
MOST = 24  # operations
MOST_ENTRIES = 256  # of a table
# Rows of a product: with more, what is computed for each block of them takes longer than to store
# it once.
MOST_ROWS, MOST_ROWS_ON_GPU = 512, 64
FEW_ROWS = 16  # for which every element is read once
LEAST_SHARE = 1 / 32  # of the bytes of an operand, that a tensor has which counts


@dataclass(frozen=True, eq=False)
class Prologue:
    """What computes a right operand.

    Attributes:
        members: its operations and views, producers first; the last one is the operand.
    """

    members: tuple[Node, ...]

    @property
    def root(self) -> Node:
        """The operand, (K, N) or (N, K)."""
        return self.members[-1]

    @property
    def leaves(self) -> list[Node]:
        """The tensors that it reads."""
        own = set(self.members)
        return list(dict.fromkeys(p for m in self.members for p in m.producers if p not in own))

    def reads(self) -> dict[Node, list[list[Index]]]:
        """Return at which indices an element is made of each leaf.

        Raises:
            NoDigits: there is an operation of which that cannot be said.
        """
        found: dict[Node, list[list[Index]]] = {leaf: [] for leaf in self.leaves}
        for node, at in self._elements(set(self.members)):
            if node in found:
                found[node].append(at)
        return found

    def with_best_views(self) -> Prologue:
        """Return what reads each tensor in the shape in which its indices are the simplest.

        Raises:
            NoDigits: as ``reads``.
        """
        own = set(self.members)
        views = {node for node in own if node.kind == "view" and viewed(node) not in own}
        kept = set(own)
        for node, at in self._elements(own - views):
            if node in views:
                kept -= set(_chain(_simplest(node, at)))
        return Prologue(_needed(self.members, kept))

    def _elements(self, own: Collection[Node]) -> Iterator[tuple[Node, list[Index]]]:
        """Yield nodes and indices of the elements that one of the operand is made of.

        ``own``: nodes whose own producers follow.
        """
        first = [digits.of_variable(v, n) for v, n in zip("rc", self.root.shape, strict=True)]
        done, stack = set[tuple[Node, tuple[Index, ...]]](), [(self.root, first)]
        while stack:
            node, at = stack.pop()
            if (node, tuple(at)) not in done:
                done.add((node, tuple(at)))
                yield node, at
                stack += producers_at(node, at) if node in own else []


class NoDigits(Exception):
    """Indices of elements of what a node is made of are no digits of those of its own."""


def prologue_of(node: Node) -> tuple[Node, ...]:
    """Return the operations that compute the right operand of a product, if its kernel does."""
    found: Prologue | None = node.attrs.get("prologue")
    return found.members if found else ()


def with_prologues(roots: Sequence[Node], is_on_gpu: bool) -> list[Node]:
    """Return roots where products of few rows compute right operands that nobody else reads.

    Such a product reads its left operand and the leaves of its prologue, which is an attribute. One
    of more rows reads what is "unpacked" of the leaves, where bits are.
    """
    users, results = consumers(ordered(roots)), set(roots)
    most_rows = MOST_ROWS_ON_GPU if is_on_gpu else MOST_ROWS

    def change(node: Node, before: Node) -> Node:
        if node.kind != "product":
            return node
        rows, (a, b) = present(math.prod(node.shape[:-1])), before.producers
        is_same = b is node.producers[1]  # else its leaves are others by now
        if len(b.shape) != 2 or not is_same:
            return node
        found = _traced(_members(b, before, users, results))
        if found is None or a in found.members or not _reads_what_is_there(found):
            return node
        if any(member.computed_in != "float32" for member in (node, *found.members)):
            return node
        (left, right), own = node.producers, MappingProxyType({"prologue": found})
        if rows <= most_rows and (rows <= FEW_ROWS or _reads_no_more(found)):
            args, attrs = (left, *found.leaves), MappingProxyType({**node.attrs, **own})
            return Node(node.kind, node.op, args, node.shape, node.dtype, attrs, node.span)
        if all(member.kind in ("pointwise", "view") for member in found.members):
            return node
        leaves = tuple(found.leaves)
        made = Node("unpacked", "unpacked", leaves, right.shape, right.dtype, own, right.span)
        return with_args(node, (left, made))

    return rewritten_beside(roots, change)


def _members(
    root: Node, product: Node, users: Mapping[Node, Sequence[Node]], results: set[Node]
) -> tuple[Node, ...]:
    """Return what can be computed of an operand by a product, and nobody else needs."""
    nodes = ordered([root], _is_computed)
    tables = {n.producers[0] for n in nodes if n.kind == "call" and is_look_up(n)}
    found = {node for node in nodes if _is_computed(node)} - tables
    while True:
        shared = {
            node for node in found
            if node in results or any(u is not product and u not in found for u in users[node])
        }  # fmt: skip
        if not shared:
            break
        found -= shared
    return _needed(nodes, found)


def _needed(nodes: Sequence[Node], found: Collection[Node]) -> tuple[Node, ...]:
    """Return those of some nodes that the last one is made of without others, producers first."""
    needed, kept = {nodes[-1]}, list[Node]()
    for node in reversed(nodes):
        if node in needed and node in found:
            needed |= set(node.producers)
            kept.append(node)
    return tuple(reversed(kept))


def _traced(members: tuple[Node, ...]) -> Prologue | None:
    """Return what computes an operand by some operations.

    None: there are none, too many, or one of which elements cannot be traced.
    """
    if not 1 <= sum(node.kind != "view" for node in members) <= MOST:
        return None
    try:
        return Prologue(members).with_best_views()
    except NoDigits:
        return None


def _simplest(view: Node, at: Sequence[Index]) -> Node:
    """Return a view, or what it is one of, which has an element at the simplest index."""
    found, node, index = view, view, list(at)
    least = _digits(at)
    for below in _chain(view)[1:]:
        try:
            ((_, index),) = producers_at(node, index)
        except NoDigits:
            break
        node = below
        if _digits(index) <= least:
            found, least = node, _digits(index)
    return found


def _digits(at: Sequence[Index]) -> tuple[int, int]:
    """Return the most digits along an axis, and all."""
    counts = [len(index) for index in at]
    return max(counts, default=0), sum(counts)


def _chain(node: Node) -> list[Node]:
    """Return a node, what it is a view of, and so on."""
    found = [node]
    while found[-1].kind == "view":
        found.append(found[-1].producers[0])
    return found


def _reads_what_is_there(prologue: Prologue) -> bool:
    """Return whether no kernel makes what it reads, which would compute the rest as well."""
    wide = _wide(prologue)
    return bool(wide) and all(map(_is_there, wide))


def _reads_no_more(prologue: Prologue) -> bool:
    """Return whether it reads no more bytes than the operand has."""
    return sum(map(bytes_of, _wide(prologue))) <= bytes_of(prologue.root)


def _wide(prologue: Prologue) -> list[Node]:
    """Return the tensors that it reads but for small ones."""
    least = LEAST_SHARE * bytes_of(prologue.root)
    return [leaf for leaf in prologue.leaves if bytes_of(leaf) >= least]


def _is_there(node: Node) -> bool:
    return viewed(node).kind in ("input", "call")


# --- which operations ---------------------------------------------------------------------------


def parts_of(node: Node) -> tuple[int, bool, tuple[Node, ...]] | None:
    """Return the axis, whether it is a new one, and the equal parts that a tensor is joined of."""
    if node.kind not in ("call", "joined") or node.op not in ("cat", "stack"):
        return None
    axis = node.attrs["axis"] if node.kind == "joined" else node.attrs["call"].args[1]
    parts = node.producers
    is_even = all(p.shape == parts[0].shape and p.dtype == node.dtype for p in parts)
    is_known = isinstance(axis, int) and is_even and len(parts) > 1
    return (axis % len(node.shape), node.op == "stack", parts) if is_known else None


def _is_computed(node: Node) -> bool:
    """Return whether a kernel can compute a node where it is needed."""
    if any(varies(n) for n in node.shape) and node.kind != "pointwise":
        return False
    if node.kind == "pointwise":
        return node.op in OPERATIONS
    if node.kind == "view":
        index = node.attrs.get("index", ())
        return node.op in ("reshape", "permute", "slice") and all(i in WHOLE for i in index)
    if node.kind == "joined":
        return parts_of(node) is not None
    return node.kind == "call" and (
        node.op == "expand" or parts_of(node) is not None
        or is_of_bits(node) or is_conversion(node) or is_look_up(node)
    )  # fmt: skip


def is_of_bits(node: Node) -> bool:
    """Return whether a call is arithmetic of integers, tensors or numbers."""
    call = node.attrs["call"]
    is_known = OF_BITS.get(plain(node.op)) is not None and len(call.args) == 2 and not call.kwargs
    if not is_known or not {node.dtype, *(p.dtype for p in node.producers)} <= set(INTEGERS):
        return False
    return all(type(arg) in (Hole, int) for arg in call.args) and _shifts_within(node)


def _shifts_within(node: Node) -> bool:
    """Return whether a number that bits are shifted by is one that all CPUs shift by."""
    by = node.attrs["call"].args[1]
    is_shift = OF_BITS[plain(node.op)] in (">>", "<<")
    if not is_shift or type(by) is int:
        return not is_shift or 0 <= by < 8 * DType(node.dtype).itemsize
    return OF_BITS[plain(node.op)] == ">>"


def is_conversion(node: Node) -> bool:
    """Return whether a call converts integers to integers."""
    call, types = node.attrs["call"], [node.dtype, *(p.dtype for p in node.producers)]
    return node.op in CONVERSIONS and not call.kwargs and len(types) == 2 and (
        set(types) <= set(INTEGERS)
    )  # fmt: skip


def is_look_up(node: Node) -> bool:
    """Return whether a call looks up entries of a small table, all of which are there."""
    call = node.attrs["call"]
    if node.op not in LOOK_UPS or call.kwargs or len(node.producers) != 2:
        return False
    (table, index), by = node.producers, call.args[1:]
    is_by_tensor = by in ((Hole(1),), ([Hole(1)],))
    if not is_by_tensor or len(table.shape) != 1 or varies(table.shape[0]):
        return False
    found = _bounds(index) if index.dtype in INTEGERS else None
    is_table = table.dtype in FLOATS and table.shape[0] <= MOST_ENTRIES
    return is_table and found is not None and found[0] >= 0 and found[1] < table.shape[0]


def plain(name: str) -> str:
    """Return the name of a function of torch without the underscores of an operator."""
    return name.strip("_")


def _bounds(node: Node) -> tuple[int, int] | None:
    """Return the least and the largest that elements can be; None: that is not known."""
    if node.kind == "view" or (node.kind == "call" and node.op == "expand"):
        return _bounds(node.producers[0])
    joined = parts_of(node)
    if joined is not None:
        known = [_bounds(part) for part in joined[2]]
        found = [bounds for bounds in known if bounds is not None]
        is_known = len(found) == len(known)
        return (min(b[0] for b in found), max(b[1] for b in found)) if is_known else None
    if node.kind == "call" and is_conversion(node):
        found_before, limits = _bounds(node.producers[0]), _limits(node.dtype)
        fits = found_before and limits[0] <= found_before[0] and found_before[1] <= limits[1]
        return found_before if fits else limits
    if node.kind == "call" and is_of_bits(node):
        by = node.attrs["call"].args[1]
        form = OF_BITS[plain(node.op)]
        if form == "&" and type(by) is int and within(by, node.dtype) >= 0:
            return 0, within(by, node.dtype)
        inner = _bounds(node.producers[0])
        if form == ">>" and type(by) is int and inner is not None:
            return inner[0] >> by, inner[1] >> by
    return _limits(node.dtype)


def within(value: int, dtype: str) -> int:
    """Return what is left of a number in an integer type."""
    least, most = _limits(dtype)
    return (value - least) % (most - least + 1) + least


def _limits(dtype: str) -> tuple[int, int]:
    bits = 8 * DType(dtype).itemsize
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


# --- where elements come from -------------------------------------------------------------------


def producers_at(node: Node, at: Sequence[Index]) -> list[tuple[Node, list[Index]]]:
    """Return of which elements of its producers an element is made.

    Of joined tensors these are the elements of all parts, of which ``part_at`` says the one.

    Raises:
        NoDigits: it is none that digits of its index name.
    """
    if node.kind == "view" and node.op == "permute":
        found: list[Index] = [()] * len(at)
        for index, axis in zip(at, node.attrs["axes"], strict=True):
            found[axis] = index
        return [(node.producers[0], found)]
    if node.kind == "view":
        source = node.producers[0]
        same = at if source.shape == node.shape else digits.reshaped(at, source.shape)
        if same is None:
            raise NoDigits
        return [(source, list(same))]
    joined = parts_of(node)
    if joined is not None:
        inner = part_at(node, at)[1]
        return [(part, inner) for part in joined[2]]
    if node.kind == "call" and is_look_up(node):
        return [(node.producers[1], list(at))]
    return [(p, _seen(p.shape, node.shape, at)) for p in node.producers]


def part_at(node: Node, at: Sequence[Index]) -> tuple[Index, list[Index]]:
    """Return which part of a joined tensor an element is of, and where it is there.

    Raises:
        NoDigits: no digits of its index say that.
    """
    joined = parts_of(node)
    assert joined is not None
    axis, is_new, parts = joined
    if is_new:
        return at[axis], [*at[:axis], *at[axis + 1 :]]
    inner = digits.split(at[axis], parts[0].shape[axis])
    if inner is None:
        raise NoDigits
    return inner[0], [*at[:axis], inner[1], *at[axis + 1 :]]


def _seen(shape: Shape, whole: Shape, at: Sequence[Index]) -> list[Index]:
    """Return the indices of an element of what broadcasts to a shape."""
    lead = len(whole) - len(shape)
    return [() if n == 1 else index for n, index in zip(shape, at[lead:], strict=True)]
