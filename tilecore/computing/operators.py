"""Operators of torch's graphs (``torch.ops.aten``) as functions that computations know.

Most are called by their names with the arguments that they have. Others are written as what
computations know; of several results only some may be read, and random numbers are drawn anew by
each call of a plan.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._prims.rng_prims import run_with_rng_state
from torch.utils._pytree import tree_leaves

from tilecore.computing.functions.attention_gradients import NAME, gradients
from tilecore.computing.operands import reading
from tilecore.computing.reading.tensor import Traced, called, drawn
from tilecore.errors import UnsupportedSyntax
from tilecore.torch_graphs import (
    STATES,
    Nothing,
    told_on,
    with_effects,
    with_nothing,
)

_ATEN = torch.ops.aten
Function = Callable[..., Any]
OPERATORS = (OpOverload, HigherOrderOperator)


def function_of(node: torch.fx.Node) -> Function:
    """Return what computes a node of a graph that calls an operator: of traced tensors or real."""
    overload, known = node.target, node.meta.get("val")
    if overload is with_effects:
        return _with_effects
    if overload in STATES:
        return _state(overload)
    if overload is run_with_rng_state:
        return _from_state(node.args[1], known)
    if isinstance(overload, HigherOrderOperator) or overload in OF_DEVICE:
        device = next(t.device for t in tree_leaves(known) if isinstance(t, torch.Tensor))
        return _named(_name(overload), told_on(device, overload))
    assert isinstance(overload, OpOverload)
    if any(given.target is Nothing for given in node.all_input_nodes):
        return _named(_name(overload), with_nothing(overload))
    if overload is _ATEN.as_strided.default:
        return _strided(node.all_input_nodes[0].meta["val"])
    of_first = OF_FIRST.get(overload)
    if of_first is not None and _used(node) <= {0}:
        return of_first
    if overload is _ATEN._scaled_dot_product_flash_attention_for_cpu.default:
        return _attention_and_sums
    own = OWN.get(_name(overload))
    if own is not None and overload is not _ATEN.view.dtype:  # of the same bits
        return own
    if torch.Tag.nondeterministic_seeded in overload.tags and isinstance(known, torch.Tensor):
        is_fixed = all(isinstance(extent, int) for extent in known.shape)  # else it is refused
        return _drawing(overload, known) if is_fixed else _by_name(overload)
    return _by_name(overload)


def _used(node: torch.fx.Node) -> set[int]:
    """Return which of several results are read."""
    return {user.args[1] for user in node.users if user.target is operator.getitem}


def _name(overload: Any) -> str:
    if isinstance(overload, HigherOrderOperator):
        return str(overload.name())
    name: str = overload._schema.name.partition("::")[2]
    return name


@functools.cache
def _by_name(overload: OpOverload) -> Function:
    return _named(_name(overload), overload)


def _named(name: str, of_torch: Function) -> Function:
    """Return what calls an operator; ``of_torch``: of tensors of torch."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(leaf, Traced) for leaf in tree_leaves((args, kwargs))):
            return called(name, args, kwargs, of_torch)
        return of_torch(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    return function


def _drawing(overload: OpOverload, like: torch.Tensor) -> Function:
    """Return an operator that draws numbers; ``like``: a tensor such as it returns."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if reading() is None:
            return overload(*args, **kwargs)
        return drawn(_name(overload), overload, args, kwargs, tuple(like.shape), like.dtype)

    function.__name__ = function.__qualname__ = _name(overload)
    return function


def _state(make: Callable[[], torch.Tensor]) -> Function:
    """Return what makes a state from which numbers are drawn, anew in each call of a plan."""

    def function() -> Any:
        if reading() is None:
            return make()
        return drawn(make.__name__, make, (), {}, (len(torch.get_rng_state()),), torch.uint8)

    function.__name__ = function.__qualname__ = make.__name__
    return function


def _from_state(overload: OpOverload, like: Any) -> Function:
    """Return an operator that draws numbers from a state; ``like``: such as it returns."""
    name, is_dropout = _name(overload), overload is _ATEN.native_dropout.default

    def function(state: Any, _: Any, *args: Any, **kwargs: Any) -> Any:
        if reading() is None:
            return run_with_rng_state(state, overload, *args, **kwargs)
        if is_dropout:
            return _dropout(*args, **{**kwargs, "state": state})
        if not isinstance(like, torch.Tensor) or not all(isinstance(n, int) for n in like.shape):
            raise UnsupportedSyntax(expected="numbers of a known shape", found=f"`{name}`")
        own = functools.partial(_of_state, overload)
        return drawn(name, own, (state, *args), kwargs, tuple(like.shape), like.dtype)

    return function


def _of_state(function: Function, state: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what a function draws from a state; torch's own is then as it was."""
    now = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        return function(*args, **kwargs)
    finally:
        torch.set_rng_state(now)


def _strided(like: torch.Tensor) -> Function:
    """Return ``as_strided`` of a tensor that torch takes to lie as another one does."""
    shape, steps, first = tuple(like.shape), tuple(like.stride()), like.storage_offset()
    is_told = all(isinstance(n, int) for n in (*shape, *steps, first))

    def laid(x: torch.Tensor, size: Any, stride: Any, offset: int | None = None) -> torch.Tensor:
        if (x.stride(), x.storage_offset()) != (steps, first):
            x = torch.empty_strided(shape, steps, dtype=x.dtype, device=x.device).copy_(x)
            offset = None if offset is None else offset - first
        return _ATEN.as_strided.default(x, size, stride, offset)

    def function(x: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
        if not isinstance(x, Traced):
            return _ATEN.as_strided.default(x, size, stride, storage_offset)
        if not is_told:
            raise UnsupportedSyntax(expected="strides that do not vary", found="`as_strided`")
        return called("as_strided", (x, size, stride, storage_offset), {}, laid)

    return function


def _with_effects(token: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what an operator does that has effects, behind a token that orders them."""
    if any(isinstance(leaf, Traced) for leaf in tree_leaves((token, args, kwargs))):
        function = functools.partial(_effect, operator)
        return called("with_effects", (token, *args), kwargs, function)
    if reading() is not None:
        raise UnsupportedSyntax(expected="effects that follow from tensors", found=f"{operator}")
    return _effect(operator, token, *args, **kwargs)


def _effect(operator: Any, token: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    _ = token
    found = operator(*args, **kwargs)
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    other = torch.empty(1, device=tensors[0].device if tensors else None)
    results = found if isinstance(found, tuple) else () if found is None else (found,)
    return (other, *results)


# --- as other functions ---------------------------------------------------------------------------


def _as_it_is(x: Any) -> Any:
    return x


def _converted(x: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
    _ = kwargs  # of the layout in memory
    if device is not None and torch.device(device).type != x.device.type:
        raise UnsupportedSyntax(expected=f"tensors on {x.device}", found=f"a copy on {device}")
    return x.to(dtype) if dtype is not None and dtype != x.dtype else x.clone()


def _copied(x: Any, src: Any, non_blocking: bool = False) -> Any:
    """Return a tensor with the elements of another one, as its own type."""
    _ = non_blocking
    found = _converted(src, dtype=x.dtype)
    return found if len(found.shape) == len(x.shape) else found.expand(x.shape)


def _softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    return torch.softmax(x, dim, dtype=torch.float32 if half_to_float else None)


def _log_softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    return torch.log_softmax(x, dim, dtype=torch.float32 if half_to_float else None)


def _creating(name: str) -> Function:
    """Return what creates a tensor: one of the computation, while that is read."""

    def function(*args: Any, **kwargs: Any) -> Any:
        is_plain = kwargs.get("layout") in (None, torch.strided) and not kwargs.get("pin_memory")
        named = {k: v for k, v in kwargs.items() if k not in ("layout", "pin_memory")}
        return getattr(torch, name)(*args, **(named if is_plain else kwargs))

    return function


def _number(value: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
    return _creating("full")((), value, dtype=dtype or torch.get_default_dtype(), **kwargs)


def _part(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    axis = dim % len(x.shape)
    return x[(*[slice(None)] * axis, slice(start, end, step))]


def _reshaped(x: Any, shape: Sequence[Any] | torch.dtype) -> Any:
    return x.view(shape) if isinstance(shape, torch.dtype) else x.reshape(shape)


def _mask(x: Any, share: float) -> Any:
    return torch.empty(x.shape, dtype=torch.bool, device=x.device).bernoulli_(share)


def _dropout(x: Any, p: float, train: bool | None, state: Any = None) -> Any:
    """Return what a dropout leaves, and the mask, drawn as torch does, from a state if given."""
    if not isinstance(x, Traced):
        return _ATEN.native_dropout.default(x, p, train)
    if train is False or p in (0, 1):
        raise UnsupportedSyntax(expected="a dropout of some elements", found=f"p={p}")
    given = (x, 1 - p) if state is None else (state, x, 1 - p)
    draw = _mask if state is None else functools.partial(_of_state, _mask)
    mask: Any = drawn("bernoulli", draw, given, {}, tuple(x.shape), torch.bool)
    return (x * mask * (1 / (1 - p))).to(x.dtype), mask


def _attention(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    found = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return (found,)


def _attention_and_sums(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """Return attention, and what its gradient needs beside; with a mask it is torch's."""
    overload = _ATEN._scaled_dot_product_flash_attention_for_cpu.default
    is_plain = attn_mask is None and not dropout_p and q.shape[:2] == k.shape[:2]
    if is_plain and isinstance(q, Traced):
        return called("attention_and_sums", (q, k, v, is_causal, scale), {})
    options = {"attn_mask": attn_mask, "scale": scale}
    return _by_name(overload)(q, k, v, dropout_p, is_causal, **options)


def _attention_gradients(*args: Any, **kwargs: Any) -> Any:
    if reading() is None:
        found = gradients(*args, **kwargs)
    else:
        found = called("attention_gradients", args, kwargs, gradients)
    return tuple(t.transpose(1, 2) for t in found)


def _attention_of_gpus(
    q: Any, k: Any, v: Any, bias: Any, compute_log_sumexp: bool, dropout_p: float = 0.0,
    is_causal: bool = False, return_debug_mask: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    _ = compute_log_sumexp, return_debug_mask
    return _attention(q, k, v, dropout_p, is_causal, attn_mask=bias, scale=scale)


def _flash_attention(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    _ = return_debug_mask
    return _attention(q, k, v, dropout_p, is_causal, scale=scale)


def _steps(x: Any, dim: int) -> Any:
    """Return a stride, where it is known."""
    if isinstance(x, Traced):
        raise UnsupportedSyntax(expected="a graph of no strides that vary", found="`sym_stride`")
    return x.stride(dim)


def _first(x: Any) -> Any:
    """Return where a tensor begins in its memory, where that is known."""
    if isinstance(x, Traced):
        raise UnsupportedSyntax(expected="a graph of no offsets", found="`sym_storage_offset`")
    return x.storage_offset()


def _by_channel(x: Any, value: Any) -> Any:
    return value.reshape([1, -1, *[1] * (len(x.shape) - 2)])


def _normalized(x: Any, weight: Any, bias: Any, mean: Any, scale: Any) -> Any:
    found = (x - mean) * scale
    found = found if weight is None else found * _by_channel(x, weight)
    return (found if bias is None else found + _by_channel(x, bias)).to(x.dtype)


def _trained_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float,
    eps: float,
) -> Any:  # fmt: skip
    """Return a batch norm, the statistics that it takes, and what becomes of the running ones."""
    if not training:
        raise UnsupportedSyntax(expected="a batch norm that trains", found="training=False")
    axes = [axis for axis in range(len(x.shape)) if axis != 1]
    own, centre = torch.var_mean(x.float(), axes, correction=0, keepdim=True)
    scale = torch.rsqrt(own + eps)
    count = math.prod(x.shape[axis] for axis in axes)
    spread = own.flatten() * (count / max(count - 1, 1))
    return (
        _normalized(x, weight, bias, centre, scale), centre.flatten(), scale.flatten(),
        mean + momentum * (centre.flatten() - mean),
        variance + momentum * (spread - variance),
    )  # fmt: skip


def _norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, eps: float
) -> Any:
    _ = momentum
    scale = torch.rsqrt(_by_channel(x, variance).float() + eps)
    return (_normalized(x, weight, bias, _by_channel(x, mean).float(), scale),)


OWN: Mapping[str, Function] = {
    "_to_copy": _converted, "convert_element_type": lambda x, dtype: _converted(x, dtype=dtype),
    "copy": _copied, "_softmax": _softmax, "_log_softmax": _log_softmax, "slice": _part,
    "view": _reshaped, "_unsafe_view": _reshaped,
    "alias": _as_it_is, "detach": _as_it_is, "native_dropout": _dropout,
    "_native_batch_norm_legit_functional": _trained_norm, NAME: _attention_gradients,
    "scalar_tensor": _number, "sym_size": lambda x, dim: x.shape[dim],
    "sym_numel": lambda x: x.numel(), "sym_stride": _steps, "sym_storage_offset": _first,
    **{name: _creating(name) for name in ("full", "zeros", "ones", "arange", "eye", "linspace")},
}  # fmt: skip
# What their results are like depends on the device, as with operators that run graphs.
OF_DEVICE = (_ATEN._embedding_bag.default, _ATEN._embedding_bag_forward_only.default)
OF_FIRST: Mapping[OpOverload, Function] = {  # where only the first result is read
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    _ATEN._scaled_dot_product_flash_attention.default: _flash_attention,
    _ATEN._scaled_dot_product_efficient_attention.default: _attention_of_gpus,
    _ATEN._scaled_dot_product_cudnn_attention.default: _attention_of_gpus,
    _ATEN._native_batch_norm_legit_no_training.default: _norm,
}
