"""Calls of computations that torch takes part in: gradients, and code that torch compiles.

A gradient is torch's own: the function is plain Python over torch's operations, and torch runs it
again for it. In code that torch compiles or exports a call is one node of the graph, an operator
``tilecore::compute_NAME``; sizes may be dynamic, each set of them gets its plan as the graph runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import fake_tensor_tls

from tilecore.computing import arrays
from tilecore.computing.calls import Impure
from tilecore.computing.modes import Pure
from tilecore.computing.planning.plan import Plan
from tilecore.computing.reading.held import Changing, Held, Taken
from tilecore.computing.reading.trees import (
    Arguments,
    Forming,
    Items,
    Outcome,
    Passed,
    Plain,
    is_object,
)
from tilecore.errors import UnsupportedSyntax
from tilecore.torch_ops import TAGS
from tilecore.torch_trace import labelled_as

_library = torch.library.Library("tilecore", "FRAGMENT")
_operators: dict[tuple[str, Any], _Operator] = {}  # by label and structure; torch keeps them


class Callee(Protocol):
    """A computation, as far as torch's part in its calls goes."""

    function: Callable[..., Any]
    label: str

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Passed:
        """Return the arguments of a call by the function's parameters."""

    def run(self, bound: Passed) -> Any:
        """Compute, without a gradient."""


# --- gradients ------------------------------------------------------------------------------------


def differentiable(
    computation: Callee, bound: Passed, plan: Plan, containers: Mapping[str, Any]
) -> Any:
    """Return what a call returns, differentiable by its tensors and by those that it holds.

    Torch computes it where objects hold tensors, or what holds them is changed: to run that again
    for the gradient would change it again.
    """
    changes = plan.outcome.effects or plan.outcome.writes
    if changes or any(map(is_object, containers.values())):
        return by_torch(computation, bound)
    tensors = _tensors(bound)
    given = (*tensors.values(), *plan.held)
    found = _Recomputed.apply(computation, bound, plan, tuple(tensors), *given)
    return plan.outcome.build(found, containers)


class _Recomputed(torch.autograd.Function):  # type: ignore[misc]
    """Forward by our kernels; for the gradient forward again, and backward, by torch."""

    @staticmethod
    def forward(
        ctx: Any, computation: Callee, bound: Passed, plan: Plan,
        names: Sequence[str], *given: Any,
    ) -> Any:  # fmt: skip
        ctx.computation, ctx.bound, ctx.plan, ctx.count = computation, bound, plan, len(names)
        ctx.save_for_backward(*given)
        return _apart(plan.computed(dict(zip(names, given, strict=False))), given)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        given, needed = ctx.saved_tensors, ctx.needs_input_grad[4:]
        is_graph_kept = torch.is_grad_enabled()  # for a gradient of this gradient
        with torch.enable_grad():
            leaves = list(given)
            if not is_graph_kept:
                own = zip(given[: ctx.count], needed, strict=False)
                leaves[: ctx.count] = [t.detach().requires_grad_(is_needed) for t, is_needed in own]
            found = by_torch(ctx.computation, _replaced(ctx.bound, leaves[: ctx.count]))
            outputs = ctx.plan.outcome.flat(found, len(gradients))
            pairs = [(o, g.to(o.dtype)) for o, g in zip(outputs, gradients, strict=True)
                     if o.requires_grad]  # fmt: skip
            wanted = [leaf for leaf, is_needed in zip(leaves, needed, strict=True) if is_needed]
            results, gradients = zip(*pairs, strict=True)
            known = torch.autograd.grad(
                results, wanted, gradients, allow_unused=True, create_graph=is_graph_kept
            )
        rest = iter(known)
        return None, None, None, None, *(next(rest) if is_needed else None for is_needed in needed)


def by_torch(computation: Callee, bound: Passed) -> Any:
    """Return what the function itself returns for tensors of torch.

    Raises:
        UnsupportedSyntax: torch cannot run it; it is one over NumPy's functions (TC101).
    """
    try:
        return computation.function(*bound.args, **bound.kwargs)
    except (TypeError, RuntimeError) as error:
        raise UnsupportedSyntax(
            expected="a function of torch's operations where torch differentiates or compiles",
            found=str(error).strip().splitlines()[0],
            hint="call it under torch.no_grad(), or write it with torch's functions",
        ) from error


def _tensors(bound: Passed) -> dict[str, torch.Tensor]:
    """Return the tensors of torch among the arguments of a call, by their place."""
    found: dict[str, torch.Tensor] = {}

    def keep(place: str, tensor: Any) -> None:
        if isinstance(tensor, torch.Tensor):
            found[place] = tensor

    for name, value in bound.arguments.items():
        arrays.mapped(value, name, keep)
    return found


def _replaced(bound: Passed, tensors: Sequence[torch.Tensor]) -> Passed:
    """Return the arguments of a call with other tensors of torch, in their order."""
    rest = iter(tensors)

    def change(_: str, tensor: Any) -> Any:
        return next(rest) if isinstance(tensor, torch.Tensor) else tensor

    arguments = {k: arrays.mapped(v, k, change) for k, v in bound.arguments.items()}
    return bound.changed(arguments)


def _apart(results: Sequence[torch.Tensor], given: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Return results none of which is an argument, as torch wants it of its operators."""
    theirs = {t.untyped_storage().data_ptr() for t in given}
    return tuple(r.clone() if r.untyped_storage().data_ptr() in theirs else r for r in results)


# --- graphs ---------------------------------------------------------------------------------------


def call(computation: Callee, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what a call returns; for code that torch traces."""
    return _node(computation.label, args, dict(kwargs))


@torch._dynamo.nonstrict_trace  # type: ignore[untyped-decorator]
def _node(label: str, args: Any, kwargs: Any) -> Any:
    """Make a node of a call: torch runs this with tensors that have no elements.

    Where a gradient is wanted, the nodes are those of the function itself.
    """
    computation = labelled_as(label)
    bound = computation.bound(args, kwargs)
    tensors = list(_tensors(bound).values())
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return by_torch(computation, bound)
    operator = _operator(computation, bound)
    found = operator.of_torch(tensors)
    return operator.outcome.build(found, {})


UNKNOWN = Outcome(Plain(None))


@dataclass(eq=False)
class _Operator:
    """A computation as an operator of torch: a list of tensors to a list of new ones.

    Attributes:
        bound: arguments of a call, with tensors that stand for others.
        of_torch: the operator.
        outcome: what a call returns; known when it has run.
        count: how many tensors are in that.
    """

    computation: Callee
    bound: Passed
    of_torch: Any = None
    outcome: Outcome = UNKNOWN
    count: int = 0

    def define(self, name: str) -> None:
        """Make the operator known to torch."""
        _library.define(f"{name}(Tensor[] tensors) -> Tensor[]", tags=TAGS)
        _library.impl(name, self.run, "CompositeExplicitAutograd")
        _library.impl(name, torch.library.fallthrough_kernel, "Autograd")
        torch.library.register_fake(f"tilecore::{name}", self.fake, lib=_library)
        self.of_torch = getattr(torch.ops.tilecore, name)

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Compute."""
        with torch.no_grad():
            found = self.computation.run(_replaced(self.bound, tensors))
        return list(_apart(self._listed(found), tensors))

    def fake(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return tensors like the results, without elements."""
        allowed = fake_tensor_tls.allow_non_fake_inputs_override
        fake_tensor_tls.allow_non_fake_inputs_override = True  # those that the function holds
        bound = _replaced(self.bound, tensors)
        containers = Arguments.of(bound.arguments)
        before = containers.items()
        held = Held(self.computation.function, Taken())
        try:
            with held.watched(), Pure([*tensors, *held.tensors]):
                found = by_torch(self.computation, bound)
        except (Impure, Changing):
            raise _changing() from None
        finally:
            fake_tensor_tls.allow_non_fake_inputs_override = allowed
        if not _are_same(before, containers):
            raise _changing()
        return [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in self._listed(found)]

    def _listed(self, found: Any) -> list[torch.Tensor]:
        forming = Forming(lambda value: isinstance(value, torch.Tensor))
        if self.outcome is UNKNOWN:
            self.outcome = Outcome(forming.form(found))
            self.count = len(forming.leaves)
        return self.outcome.flat(found, self.count)


def _changing() -> UnsupportedSyntax:
    return UnsupportedSyntax(
        expected="a computation that changes nothing it is given or holds, where torch compiles",
        found="an update in place",
        hint="call it outside of what torch compiles, or return what is new",
    )


def _are_same(before: Mapping[str, Items], containers: Arguments) -> bool:
    """Return whether containers hold what they did."""
    pairs = zip(before.values(), containers.items().values(), strict=True)
    return all(a.keys() == b.keys() and all(a[key] is b[key] for key in a) for a, b in pairs)


def _operator(computation: Callee, bound: Passed) -> _Operator:
    """Return the operator of calls that differ in their tensors only."""
    structure = tuple((k, arrays.hashable(v)) for k, v in bound.arguments.items())
    key = computation.label, structure
    known = _operators.get(key)
    if known is None:
        anything = [torch.empty(0, device="meta") for _ in _tensors(bound)]
        known = _operators[key] = _Operator(computation, _replaced(bound, anything))
        name = getattr(computation.function, "__name__", "")
        name = name if name.isidentifier() else "function"  # it may be a lambda
        known.define(f"compute_{name}_{len(_operators)}")
    return known
