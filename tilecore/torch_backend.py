"""``torch.compile(function, backend="tilecore")``: what torch captures, computed by our kernels.

Torch captures graphs of a function (Dynamo), makes one of what is computed forward and one of the
gradient (AOTAutograd), and hands over both as graphs of its operators on whole tensors. Each is a
function that ``tilecore.compute`` reads: shapes decide on its kernels, which are compiled when it
is first called. Between kernels torch computes what they do not. A graph that computations refuse
(results whose shapes follow from elements, say) torch computes whole, and a warning says why.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx._lazy_graph_module import _LazyGraphModule

from tilecore.computing.computation import Computation
from tilecore.computing.operators import OPERATORS, function_of
from tilecore.computing.reading.trees import Varying
from tilecore.errors import ArgumentError, ShapeMismatch, TypeMismatch, UnsupportedSyntax
from tilecore.torch_graphs import (
    STATES,
    Results,
    computes,
    empty_arguments,
    leave_out_empty,
    with_states,
)

_ATEN = torch.ops.aten
OPTIONS = ("target", "dynamic")
# Of these there is a function of ours, or torch's is one that is not made of others.
WHOLE = (
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default, _ATEN.silu.default,
    _ATEN.lerp.Scalar, _ATEN.lerp.Tensor, _ATEN.logsumexp.default,
)  # fmt: skip
# Of these torch has a function, and ours are fused when they are made of others.
IN_PARTS = (_ATEN.native_layer_norm, _ATEN.native_group_norm, _ATEN.addcmul, _ATEN.addcdiv)
REFUSALS = (UnsupportedSyntax, TypeMismatch, ShapeMismatch)


class GraphByTorch(UserWarning):
    """A graph that torch computes, operator by operator, and why."""


def backend(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], *,
    options: Mapping[str, Any] | None = None, mode: str | None = None,
) -> Any:  # fmt: skip
    """Return what computes a graph that torch captured; ``torch.compile`` calls it.

    Args:
        graph: it.
        inputs: what it is called with first.
        options: ``target`` and ``dynamic``, as ``tilecore.compute`` has them.
        mode: of ``torch.compile``; there are none.

    Raises:
        TypeMismatch: there is no such option, or mode (TC202).
    """
    given = dict(options or {})
    unknown = [f"option {name}" for name in sorted(given.keys() - set(OPTIONS))]
    unknown += [f"mode {mode}"] * (mode not in (None, "default"))
    if unknown:
        raise TypeMismatch(
            expected=f"options of the backend tilecore ({', '.join(OPTIONS)}), and no mode",
            found=", ".join(unknown),
        )
    compiled = functools.partial(_compiled, options=given)
    by_aot = aot_autograd(
        fw_compiler=compiled, bw_compiler=compiled, inference_compiler=compiled,
        decompositions=decompositions(), partition_fn=min_cut_rematerialization_partition,
    )  # fmt: skip
    return by_aot(graph, list(inputs))


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return of what torch's operators are made for us, by operator."""
    found = dict(core_aten_decompositions().items()) | get_decompositions(IN_PARTS)
    return {operator: made for operator, made in found.items() if operator not in WHOLE}


def _compiled(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], options: Mapping[str, Any]
) -> Callable[[list[Any]], Any]:
    """Return what computes a graph of operators, in the calling convention of AOTAutograd."""
    _ = inputs
    leave_out_empty(graph.graph)
    with_states(graph.graph)
    results = Results.of(graph.graph)
    for node in graph.graph.nodes:
        is_of_torch = isinstance(node.target, OPERATORS) or node.target in STATES
        if node.op == "call_function" and is_of_torch:
            node.target = function_of(node)
    graph.recompile()
    _LazyGraphModule.force_recompile(graph)  # else its parameters have no names yet
    call = _Call(graph, Computation(graph, **options), results)
    return call.boxed


def _passed(value: Any) -> Any:
    """Return an argument of a graph as computations take it: integers are sizes."""
    return Varying(value) if type(value) is int else value


class _Call:
    """Computes a graph: by our kernels, once they refused by torch."""

    def __init__(
        self, graph: torch.fx.GraphModule, computation: Computation, results: Results
    ) -> None:
        self._graph, self._computation, self._results = graph, computation, results
        self._empty = frozenset(empty_arguments(graph.graph))
        self._is_refused = not computes(graph.graph)

    def boxed(self, given: list[Any]) -> Any:
        """Return the results for a list of tensors and numbers, which is emptied."""
        args = [None if at in self._empty else _passed(one) for at, one in enumerate(given)]
        given.clear()
        return self._results.whole(self._computed(args))

    boxed._boxed_call = True  # type: ignore[attr-defined]

    def _computed(self, args: list[Any]) -> Any:
        """Return what the graph returns; what kernels compute of empties the list."""
        if self._is_refused:
            return self._graph(*args)
        try:
            return self._computation.consume(args)
        except ArgumentError as error:  # of an operator of torch's, for what elements are
            raise error.__cause__ or error from None
        except REFUSALS as error:  # while it is read: nothing was computed, and nothing written
            self._is_refused = True
            said = str(error).splitlines()[0]
            warnings.warn(f"torch computes a graph of torch.compile: {said}", GraphByTorch, 2)
            return self._graph(*args)
