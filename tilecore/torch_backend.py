"""``torch.compile(function, backend="tilecore")``: what torch captures, computed by our kernels.

Torch captures graphs of a function (Dynamo), makes one of what is computed forward and one of the
gradient (AOTAutograd), and hands over both as graphs of its operators on whole tensors. Each is a
function that ``tilecore.compute`` reads: shapes decide on its kernels, which are compiled when it
is first called. Between kernels torch computes what they do not. A graph that computations refuse
(random numbers, results whose shapes follow from elements) torch computes whole, and a warning
says why.
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
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from tilecore.computing.computation import Computation
from tilecore.computing.tensor import Traced, called
from tilecore.errors import ShapeMismatch, TypeMismatch, UnsupportedSyntax

_ATEN = torch.ops.aten
OPTIONS = ("target", "dynamic")
# Of these there is a function of ours, or torch's is one that is not made of others.
WHOLE = (
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default, _ATEN.silu.default,
    _ATEN.lerp.Scalar, _ATEN.lerp.Tensor, _ATEN.logsumexp.default,
)  # fmt: skip
# Of these torch has a function, and ours are fused when they are made of others.
IN_PARTS = (
    _ATEN.native_layer_norm, _ATEN.native_group_norm, _ATEN._native_batch_norm_legit_functional,
    _ATEN._native_batch_norm_legit_no_training, _ATEN._softmax_backward_data, _ATEN._to_copy,
    _ATEN.addcmul, _ATEN.addcdiv,
)  # fmt: skip


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
    for node in graph.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, OpOverload):
            node.target = _function(node.target, _used(node))
    graph.recompile()
    call = _Call(graph, Computation(graph, **options))
    return call.boxed


class _Call:
    """Computes a graph: by our kernels, once they refused by torch."""

    def __init__(self, graph: torch.fx.GraphModule, computation: Computation) -> None:
        self._graph, self._computation = graph, computation
        self._is_refused = False

    def boxed(self, given: list[Any]) -> Any:
        """Return the results for a list of tensors and numbers, which is emptied."""
        args = list(given)
        given.clear()
        if self._is_refused:
            return self._graph(*args)
        try:
            return self._computation(*args)
        except REFUSALS as error:  # while it is read: nothing was computed, and nothing written
            self._is_refused = True
            said = str(error).splitlines()[0]
            warnings.warn(f"torch computes a graph of torch.compile: {said}", GraphByTorch, 2)
            return self._graph(*args)

    boxed._boxed_call = True  # type: ignore[attr-defined]


# --- operators of torch, as functions that computations know --------------------------------------


def _used(node: torch.fx.Node) -> set[int]:
    """Return which results of an operator with several are read."""
    return {user.args[1] for user in node.users if user.op == "call_function"
            and getattr(user.target, "__name__", "") == "getitem"}  # fmt: skip


@functools.cache
def _plain(operator: OpOverload) -> Callable[..., Any]:
    """Return an operator as a function of traced tensors or real ones."""
    name = operator._schema.name.partition("::")[2]
    own = OWN.get(name)

    def function(*args: Any, **kwargs: Any) -> Any:
        if own is not None:
            return own(*args, **kwargs)
        if any(isinstance(leaf, Traced) for leaf in tree_leaves((args, kwargs))):
            return called(name, args, kwargs, operator)
        return operator(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    return function


def _function(operator: OpOverload, used: set[int]) -> Callable[..., Any]:
    """Return an operator as a function; ``used``: which of several results are read."""
    if operator in ATTENTION and used <= {0}:
        return ATTENTION[operator]
    return _plain(operator)


def _converted(x: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
    _ = kwargs  # of the layout in memory
    if device is not None and torch.device(device).type != x.device.type:
        raise UnsupportedSyntax(expected=f"tensors on {x.device}", found=f"a copy on {device}")
    return x.to(dtype) if dtype is not None and dtype != x.dtype else x.clone()


def _softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    return torch.softmax(x, dim, dtype=torch.float32 if half_to_float else None)


def _log_softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    return torch.log_softmax(x, dim, dtype=torch.float32 if half_to_float else None)


def _part(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    axis = dim % len(x.shape)
    return x[(*[slice(None)] * axis, slice(start, end, step))]


def _selected(x: Any, dim: int, index: Any) -> Any:
    return x[(*[slice(None)] * (dim % len(x.shape)), index)]


def _squeezed(x: Any, dims: Any = None) -> Any:
    axes = range(len(x.shape)) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {axis % len(x.shape) for axis in axes if x.shape[axis] == 1}
    return x.reshape([n for axis, n in enumerate(x.shape) if axis not in gone])


def _reshaped(x: Any, shape: Sequence[Any]) -> Any:
    return x.reshape(shape)


OWN: Mapping[str, Callable[..., Any]] = {
    "_to_copy": _converted, "convert_element_type": lambda x, dtype: _converted(x, dtype=dtype),
    "_softmax": _softmax, "_log_softmax": _log_softmax, "slice": _part, "select": _selected,
    "squeeze": _squeezed, "view": _reshaped, "_unsafe_view": _reshaped, "reshape": _reshaped,
}  # fmt: skip


def _attention(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Any = None, scale: float | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    _ = kwargs
    found = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask, dropout_p, is_causal, scale=scale
    )
    return (found,)


ATTENTION = {_ATEN._scaled_dot_product_flash_attention_for_cpu.default: _attention}
