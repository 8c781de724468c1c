"""Graphs of torch's operators as computations read them.

Tensors without elements, which computations do not have, are left out of them; results, which
computations return row by row, have the strides that torch has told the rest of the program of.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_any, tree_leaves, tree_map_only

_ATEN = torch.ops.aten
with_effects = torch.ops.higher_order.with_effects
# Operators that torch takes to draw numbers, and where among their arguments how many are dropped.
DROPPING = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default: 3,
    _ATEN._scaled_dot_product_flash_attention.default: 3,
    _ATEN._scaled_dot_product_efficient_attention.default: 5,
    _ATEN._scaled_dot_product_cudnn_attention.default: 5,
}


@dataclass(frozen=True, slots=True)
class Nothing:
    """Stands for a tensor without elements where an operator reads it.

    Attributes:
        extents: of its axes.
        element: its type, as torch has it.
        place: the device that it is on.
    """

    extents: tuple[int, ...]
    element: Any
    place: Any

    @classmethod
    def like(cls, tensor: torch.Tensor) -> Nothing:
        """Return what stands for a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype, tensor.device)

    def tensor(self, device: Any = None) -> torch.Tensor:
        """Return such a tensor; ``device``: another one than its own."""
        return torch.empty(self.extents, dtype=self.element, device=device or self.place)


@dataclass(frozen=True, slots=True)
class Results:
    """What becomes of what a graph returns.

    Attributes:
        orders: by the number of a result, the order of its axes in which the graph returns them,
            and for one without elements what it is.
    """

    orders: dict[int, tuple[int, ...] | Nothing]

    @classmethod
    def of(cls, graph: torch.fx.Graph) -> Results:
        """Have a graph return its results in the order of their axes in memory."""
        output = graph.output_node()
        results, orders = list(output.args[0]), dict[int, tuple[int, ...] | Nothing]()
        for at, node in enumerate(results):
            known = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
            if not isinstance(known, torch.Tensor):
                continue
            order = order_of(known)
            if has_no_elements(known):
                orders[at] = Nothing.like(known)
                results[at] = node if is_token(node) else None
            elif order is not None and node.op != "placeholder":
                orders[at] = tuple(order.index(axis) for axis in range(len(order)))
                with graph.inserting_before(output):
                    results[at] = graph.call_function(torch.permute, (node, order))
        output.args = (tuple(results),)
        graph.eliminate_dead_code()
        return cls(orders)

    def whole(self, found: Sequence[Any]) -> list[Any]:
        """Return what the graph is to return, of what it does."""
        results = list(found)
        for at, order in self.orders.items():
            if isinstance(order, Nothing):
                results[at] = order.tensor()
            else:
                results[at] = results[at].permute(order)
        return results


def has_no_elements(known: Any) -> bool:
    """Return whether torch says of a value that it is a tensor without elements."""
    return isinstance(known, torch.Tensor) and any(type(n) is int and n == 0 for n in known.shape)


def is_token(node: torch.fx.Node) -> bool:
    """Return whether an operator with effects, which has none without it, returns a node."""
    of = node.args[0] if node.target is operator.getitem else None
    return isinstance(of, torch.fx.Node) and of.target is with_effects and node.args[1] == 0


def order_of(known: torch.Tensor) -> tuple[int, ...] | None:
    """Return in which order the axes of a tensor lie in memory; None: in their own, or in none."""
    sizes, strides = ([_number(n) for n in of] for of in (known.shape, known.stride()))
    if None in sizes or None in strides:
        return None
    order = sorted(range(len(sizes)), key=lambda axis: -strides[axis] if sizes[axis] != 1 else 0)
    axes = [axis for axis in order if sizes[axis] != 1]
    step = 1
    for axis in reversed(axes):
        if strides[axis] != step:
            return None
        step *= sizes[axis]
    return tuple(order) if axes != sorted(axes) else None


def _number(extent: Any) -> Any:
    """Return an extent, or what it was when the graph was captured; None: it was none."""
    return extent if isinstance(extent, int) else extent.node.hint


def leave_out_empty(graph: torch.fx.Graph) -> None:
    """Have a graph read no tensors without elements."""
    for node in list(graph.nodes):
        known = node.meta.get("val")
        if node.target is _ATEN.cat.default:
            parts = [p for p in node.args[0] if not has_no_elements(p.meta.get("val"))]
            node.args = (parts or node.args[0], *node.args[1:])
        elif node.target is _ATEN.slice_scatter.default and has_no_elements(_known(node, 1)):
            node.replace_all_uses_with(node.args[0])
        elif node.target is _ATEN.copy_.default and has_no_elements(known):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    for node in list(graph.nodes):
        known = node.meta.get("val")
        if node.op != "output" and has_no_elements(known):
            _stand_in(graph, node, Nothing.like(known))


def with_states(graph: torch.fx.Graph) -> None:
    """Have operators that draw numbers twice (checkpoints) do so from states that are made before.

    Those that draw none, since nothing is dropped, have no state.
    """
    for node in list(graph.nodes):
        if node.target is run_and_save_rng_state:
            overload, *args = node.args
            parts = {user.args[1]: user for user in node.users}
            with graph.inserting_before(node):
                state = graph.call_function(new_state)
                target, given = _drawing(state, overload, args, node.kwargs)
                made = graph.call_function(target, given, node.kwargs)
            if target is overload:  # torch's own stays as it is, and is kept for nobody
                state.target = torch.get_rng_state
            for part, new in ((0, state), (1, made)):
                if part in parts:
                    new.meta = dict(parts[part].meta)
                    parts[part].replace_all_uses_with(new)
                    graph.erase_node(parts[part])
            graph.erase_node(node)
        elif node.target is run_with_rng_state:
            state, overload, *args = node.args
            given = torch.fx.map_arg((args, node.kwargs), lambda n: n.meta["val"])
            fakes = (t for t in tree_leaves(given) if isinstance(t, FakeTensor))
            with next(fakes).fake_mode:
                node.meta["val"] = overload(*given[0], **given[1])
            node.target, node.args = _drawing(state, overload, args, node.kwargs)


def _drawing(
    state: torch.fx.Node, overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, tuple[Any, ...]]:
    """Return what calls an operator, from a state if it draws numbers, and its arguments."""
    place = DROPPING.get(overload)
    dropped = args[place] if place is not None and len(args) > place else 0.0
    if place is not None and not kwargs.get("dropout_p", dropped):
        return overload, tuple(args)
    return run_with_rng_state, (state, overload, *args)


def new_state() -> torch.Tensor:
    """Return a state from which numbers are drawn: one that follows from torch's own."""
    generator = torch.Generator()
    generator.manual_seed(int(torch.randint(2**62, ())))
    return generator.get_state()


STATES = (new_state, torch.get_rng_state)


def empty_arguments(graph: torch.fx.Graph) -> list[int]:
    """Return which arguments of a graph are tensors without elements."""
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    return [at for at, node in enumerate(arguments) if has_no_elements(node.meta.get("val"))]


def computes(graph: torch.fx.Graph) -> bool:
    """Return whether a graph makes anything of tensors that have elements, or of none at all."""
    returned = [node for node in graph.output_node().args[0] if isinstance(node, torch.fx.Node)]
    arguments = [n.meta.get("val") for n in graph.nodes if n.op == "placeholder" and n.users]
    tensors = [known for known in arguments if isinstance(known, torch.Tensor)]
    are_empty = bool(empty_arguments(graph)) and all(map(has_no_elements, tensors))
    return bool(returned) and not are_empty


def _known(node: torch.fx.Node, argument: int) -> Any:
    """Return what torch says of an argument of a node."""
    given = node.args[argument]
    return given.meta.get("val") if isinstance(given, torch.fx.Node) else None


def _stand_in(graph: torch.fx.Graph, node: torch.fx.Node, nothing: Nothing) -> None:
    """Have the operators that read a tensor without elements read what stands for it."""
    readers = [user for user in node.users if user.op != "output"]
    if not readers or all(has_no_elements(user.meta.get("val")) for user in readers):
        return
    if is_token(node):
        return
    with graph.inserting_after(node):
        parts = (nothing.extents, nothing.element, nothing.place)
        other = graph.call_function(Nothing, parts)
    for reader in readers:
        reader.replace_input_with(node, other)


def told_on(device: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator whose results without elements are those that a device has."""

    def called(*args: Any, **kwargs: Any) -> Any:
        if not tree_any(lambda leaf: getattr(leaf, "is_meta", False), (args, kwargs)):
            return function(*args, **kwargs)
        with _disable_current_modes(), FakeTensorMode(shape_env=ShapeEnv()):
            given, named = _like((args, kwargs), device)
            found = function(*given, **named)
        return _like(found, "meta")

    return called


def _like(values: Any, device: Any) -> Any:
    """Return values with tensors on a device in place of those among them."""
    return tree_map_only(
        torch.Tensor, lambda t: torch.empty(t.shape, dtype=t.dtype, device=device), values
    )


def with_nothing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes what stands for tensors without elements."""

    def called(*args: Any, **kwargs: Any) -> Any:
        on_meta = tree_any(lambda leaf: getattr(leaf, "is_meta", False), (args, kwargs))
        given, named = tree_map_only(
            Nothing, lambda one: one.tensor("meta" if on_meta else None), (args, kwargs)
        )
        return function(*given, **named)

    return called
