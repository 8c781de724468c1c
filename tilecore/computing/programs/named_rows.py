"""Rows of a tensor that integers name (``x[i]``, ``index_select``, ``embedding``, ``gather``).

Kernels that go through elements read them where they lie: what each edge of a graph takes of a node
is never stored. Torch gathers them for products, for results, and where many kernels read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from tilecore.computing import calls
from tilecore.computing.calls import Call
from tilecore.computing.extents import present
from tilecore.computing.functions import numbers
from tilecore.computing.graph import FLOATS, Node, Shape, consumers, ordered, reshaped
from tilecore.computing.places import NamedRows, Place, Places, of_view
from tilecore.computing.planning.fusion import SUMS, Group
from tilecore.computing.planning.overwriting import memory_of
from tilecore.ir.dtype import DType

LEAST_BYTES = 64  # of a row: shorter ones fill no line of a cache
MOST_KERNELS = 2  # that read them one by one
Step = Group | Node


def with_named_rows(
    order: Sequence[Step], results: Sequence[Node], written: Set[Node], is_on_gpu: bool
) -> tuple[list[Step], dict[Node, NamedRows]]:
    """Return steps in which kernels read rows where they lie, and these by the call of each.

    The calls that would gather them stand there, behind those that see to the integers.

    Args:
        order: steps of a plan.
        results: what it computes for its caller.
        written: arguments that it writes to.
        is_on_gpu: whether kernels are a GPU's.
    """
    readers, places = _Readers(order, results), Places(is_on_gpu)
    steps, named = list[Step](), dict[Node, NamedRows]()
    known: dict[object, Node] = {}
    for step in order:
        said = _said(step) if isinstance(step, Node) and step.kind == "call" else None
        if said is not None and written.isdisjoint(map(memory_of, (said.table, said.numbers))):
            assert isinstance(step, Node)
            if readers.read_them(step, places.of_named(step, said), places):
                extent, is_index = said.table.shape[said.axis], step.op != "gather"
                like = said.numbers, extent, said.axis, _wraps(step), is_index
                if like not in known:
                    known[like] = calls.called("row_numbers", numbers.named, like, {}, step.span)
                    steps.append(known[like])
                named[step] = replace(said, numbers=known[like])
        steps.append(step)
    return [s for s in steps if not readers.are_for(s, named)], named


class _Readers:
    """Who reads what in a plan."""

    def __init__(self, order: Sequence[Step], results: Sequence[Node]) -> None:
        self._users, self._kept = consumers(ordered(results)), set(results)
        self._groups: dict[Node, list[Group]] = {}
        for group in order:
            if isinstance(group, Group):
                for member in group.members:
                    self._groups.setdefault(member, []).append(group)

    def read_them(self, rows: Node, place: Place, places: Places) -> bool:
        """Return whether few kernels, and nobody else, read named rows, and read them well."""
        if place.strides[-1] != 1 or not places.is_aligned(place):
            return False
        kernels = self._of(rows, place)
        return kernels is not None and len(kernels) <= MOST_KERNELS

    def are_for(self, step: Step, named: Mapping[Node, NamedRows]) -> bool:
        """Return whether a step repeats integers for nothing but gathers that are not made."""
        if isinstance(step, Group) or (step.kind, step.op) != ("call", "expand"):
            return False
        users = self._users[step]
        return bool(users) and all(user in named and user.op == "gather" for user in users)

    def _of(self, node: Node, place: Place) -> set[Group] | None:
        """Return the kernels that read named rows at a place; None: they are needed in memory."""
        if node in self._kept:
            return None
        found: set[Group] = set()
        for user in self._users[node]:
            groups = self._groups.get(user, [])
            if groups and all(_reads_elements(group, user) for group in groups):
                found.update(groups)
                continue
            seen = of_view(user, place) if user.kind == "view" else None
            others = None if seen is None else self._of(user, seen)
            if others is None:
                return None
            found |= others
        return found


def _reads_elements(group: Group, user: Node) -> bool:
    """Return whether a kernel reads what a node of it reads element by element."""
    if group.core is None:
        return True
    return group.core.kind in SUMS and (user is group.core or user.kind == "pointwise")


def _said(step: Node) -> NamedRows | None:
    """Return the rows that a call gathers, with its own integers; None: it does something else."""
    call: Call = step.attrs["call"]
    if step.op == "rows":
        table, numbers = step.producers
        found: NamedRows | None = NamedRows(table, call.args[1], numbers)
    elif step.op == "gather":
        found = _of_gather(call, step)
    elif step.op == "embedding" and len(step.producers) == 2:
        one, other = step.producers
        found = NamedRows(one, 0, other) if one.dtype in FLOATS else NamedRows(other, 0, one)
    else:
        found = None
    return found if found is not None and _is_known(found) else None


def _wraps(step: Node) -> bool:
    """Return whether integers of a call may count from the end."""
    return step.op == "rows" and bool(step.attrs["call"].args[3])


def _of_gather(call: Call, step: Node) -> NamedRows | None:
    """Return the rows that integers name each of whose elements is the same."""
    if len(call.args) != 3 or type(call.args[1]) is not int:  # torch.gather's own have both
        return None
    table, integers = step.producers
    axis = call.args[1] % len(table.shape)
    is_repeated = (integers.kind, integers.op) == ("call", "expand")
    (own,) = integers.producers if is_repeated else (integers,)
    is_whole = _without(step.shape, axis) == _without(table.shape, axis)
    if not is_repeated or not is_whole or any(n != 1 for n in _without(own.shape, axis)):
        return None
    return NamedRows(table, axis, reshaped(own, (own.shape[axis],), step.span))


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])


def _is_known(named: NamedRows) -> bool:
    """Return whether a kernel can read such rows, and these are worth it."""
    table = named.table
    width_bytes = present(table.shape[-1]) * DType(table.dtype).itemsize
    is_row = named.axis < len(table.shape) - 1 and width_bytes >= LEAST_BYTES
    return is_row and named.numbers.dtype in ("int32", "int64") and table.dtype in FLOATS
