"""Losses: how far results are from what was wanted, by element or by row.

No whole tensor is stored for them: differences are computed as they are added up, and of the
logarithms of a softmax only that of the wanted class is. Signatures are torch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from tilecore.computing import calls
from tilecore.computing.extents import varies
from tilecore.computing.functions.composites import logsumexp, softplus
from tilecore.computing.functions.picked import gather
from tilecore.computing.functions.reductions import reduced
from tilecore.computing.graph import FLOATS, Node, cast, computed_in, pointwise, reshaped
from tilecore.errors import SourceSpan

REDUCTIONS = ("none", "mean", "sum")


def mse_loss(
    span: SourceSpan, input: Node, target: Node, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", weight: Any = None,
) -> Any:  # fmt: skip
    """Return the squares of differences, or their mean or sum."""
    if not _are_alike(input, target, reduction, size_average, reduce, weight):
        named = {"reduction": reduction} | ({} if weight is None else {"weight": weight})
        return _by_torch("mse_loss", span, input, target, size_average, reduce, **named)
    apart = pointwise("sub", input, target, span=span)
    return _together(pointwise("mul", apart, apart, span=span), reduction, span)


def l1_loss(
    span: SourceSpan, input: Node, target: Node, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", weight: Any = None,
) -> Any:  # fmt: skip
    """Return the magnitudes of differences, or their mean or sum."""
    if not _are_alike(input, target, reduction, size_average, reduce, weight):
        named = {"reduction": reduction} | ({} if weight is None else {"weight": weight})
        return _by_torch("l1_loss", span, input, target, size_average, reduce, **named)
    return _together(_distance(input, target, span), reduction, span)


def smooth_l1_loss(
    span: SourceSpan, input: Node, target: Node, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", beta: float = 1.0,
) -> Any:  # fmt: skip
    """Return magnitudes, below ``beta`` squares, that meet there; or their mean or sum."""
    if not _are_alike(input, target, reduction, size_average, reduce) or not beta > 0:
        given = (input, target, size_average, reduce, reduction, beta)
        return _by_torch("smooth_l1_loss", span, *given)
    bent = _bent(_distance(input, target, span), float(beta), span)
    return _together(pointwise("mul", bent, 1.0 / beta, span=span), reduction, span)


def huber_loss(
    span: SourceSpan, input: Node, target: Node, reduction: str = "mean", delta: float = 1.0,
    weight: Any = None,
) -> Any:  # fmt: skip
    """Return ``smooth_l1_loss`` times ``delta``."""
    if not _are_alike(input, target, reduction, weight) or not delta > 0:
        named = {} if weight is None else {"weight": weight}
        return _by_torch("huber_loss", span, input, target, reduction, delta, **named)
    bent = _bent(_distance(input, target, span), float(delta), span)
    return _together(bent, reduction, span)


def binary_cross_entropy_with_logits(
    span: SourceSpan, input: Node, target: Node, weight: Any = None, size_average: Any = None,
    reduce: Any = None, reduction: str = "mean", pos_weight: Any = None,
) -> Any:  # fmt: skip
    """Return how unlikely the wanted shares of one of two classes are, by the logits of it."""
    if not _are_alike(input, target, reduction, weight, size_average, reduce, pos_weight):
        given = (input, target, weight, size_average, reduce, reduction, pos_weight)
        return _by_torch("binary_cross_entropy_with_logits", span, *given)
    wanted = pointwise("mul", input, target, span=span)
    found = pointwise("sub", softplus(span, input), wanted, span=span)
    return _together(found, reduction, span)


def cross_entropy(
    span: SourceSpan, input: Node, target: Any, weight: Any = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """Return how unlikely wanted classes are, by the logits (rows, classes) of all."""
    old = (weight, size_average, reduce)
    if not _are_classes_of_rows(input, target, old, reduction):
        given = (input, target, weight, size_average, ignore_index, reduce, reduction)
        return _by_torch("cross_entropy", span, *given, label_smoothing)
    rows, kind = (input.shape[0], 1), computed_in(input.dtype)
    asked = (input, target, ignore_index)
    picked, is_wanted, count = calls.called("gather", _picked, asked, {}, span)
    total = logsumexp(span, input, 1, keepdim=True)
    found = pointwise("sub", total, reshaped(picked, rows, span), span=span, dtype=kind)
    if label_smoothing:
        mean = reduced("sum", input, [1], True, span, input.shape[1], kind)
        even = pointwise("sub", total, mean, span=span, dtype=kind)
        found = pointwise("mul", found, 1.0 - label_smoothing, span=span)
        even = pointwise("mul", even, float(label_smoothing), span=span)
        found = pointwise("add", found, even, span=span)
    is_wanted = reshaped(is_wanted, rows, span)
    found = pointwise("where", is_wanted, found, 0.0, span=span, dtype=kind)
    found = reshaped(found, input.shape[:1], span)
    return _of_wanted(found, count, input.dtype, reduction, span)


def _are_classes_of_rows(input: Node, target: Any, old: Sequence[Any], reduction: str) -> bool:
    """Return whether each row of numbers has a class, and nothing is asked that torch alone knows.

    ``old``: weights of classes, and arguments that torch keeps for old programs.
    """
    is_known = isinstance(target, Node) and target.dtype == "int64" and input.dtype in FLOATS
    is_of_rows = is_known and len(input.shape) == 2 and target.shape == input.shape[:1]
    return is_of_rows and all(x is None for x in old) and reduction in REDUCTIONS


def _of_wanted(found: Node, count: Node, dtype: str, reduction: str, span: SourceSpan) -> Node:
    """Return the losses of rows, or their sum, or that by how many rows want a class."""
    if reduction == "none":
        return cast(found, dtype, span)
    found = reduced("sum", found, [0], True, span)
    if reduction == "mean":
        found = pointwise("div", found, reshaped(count, (1,), span), span=span)
    return reshaped(cast(found, dtype, span), (), span)


def nll_loss(
    span: SourceSpan, input: Node, target: Any, weight: Any = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    """Return how unlikely wanted classes are, by the logarithms (rows, classes) of all."""
    old = (weight, size_average, reduce)
    if not _are_classes_of_rows(input, target, old, reduction):
        given = (input, target, weight, size_average, ignore_index, reduce, reduction)
        return _by_torch("nll_loss", span, *given)
    classes, is_wanted, count = calls.called("classes", _wanted, (target, ignore_index), {}, span)
    found = gather(span, input, 1, classes)
    kind = computed_in(input.dtype)
    found = pointwise("neg", reshaped(found, target.shape, span), span=span, dtype=kind)
    found = pointwise("where", is_wanted, found, 0.0, span=span, dtype=kind)
    return _of_wanted(found, count, input.dtype, reduction, span)


def _wanted(classes: Any, ignored: int) -> tuple[Any, Any, Any]:
    """Return classes as indices into rows, where one is wanted, and how often, by torch."""
    is_wanted = classes != ignored
    return classes.where(is_wanted, 0)[:, None], is_wanted, is_wanted.sum().float()


def kl_div(
    span: SourceSpan, input: Node, target: Node, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", log_target: bool = False,
) -> Any:  # fmt: skip
    """Return how far shares, or their logarithms, are from the logarithms of others."""
    own = "sum" if reduction == "batchmean" else reduction
    if not _are_alike(input, target, own, size_average, reduce) or not input.shape:
        given = (input, target, size_average, reduce, reduction, log_target)
        return _by_torch("kl_div", span, *given)
    if log_target:
        shares, logarithms = pointwise("exp", target, span=span), target
        apart = pointwise("sub", logarithms, input, span=span)
        found = pointwise("mul", shares, apart, span=span)
    else:
        own_part = pointwise("mul", target, pointwise("log", target, span=span), span=span)
        is_none = pointwise("eq", target, 0.0, span=span, dtype="bool")
        own_part = pointwise("where", is_none, 0.0, own_part, span=span, dtype=target.dtype)
        found = pointwise("sub", own_part, pointwise("mul", target, input, span=span), span=span)
    found = _together(found, own, span)
    if reduction == "batchmean":
        found = pointwise("div", found, _number(input.shape[0]), span=span)
    return found


def _number(extent: Any) -> Any:
    return extent if varies(extent) else float(extent)


def _picked(logits: Any, classes: Any, ignored: int) -> tuple[Any, Any, Any]:
    """Return logits of wanted classes, where one is wanted, and how often, by torch."""
    is_wanted = classes != ignored
    found = logits.gather(1, classes.where(is_wanted, 0)[:, None])
    found = found[:, 0]
    return found if found.itemsize > 4 else found.float(), is_wanted, is_wanted.sum().float()


def _are_alike(input: Node, target: Any, reduction: str, *others: Any) -> bool:
    """Return whether two tensors have one shape and element type, and nothing else is asked for."""
    if not isinstance(target, Node) or any(x is not None for x in others):
        return False
    is_known = reduction in REDUCTIONS and input.dtype in FLOATS
    return is_known and (input.shape, input.dtype) == (target.shape, target.dtype)


def _distance(input: Node, target: Node, span: SourceSpan) -> Node:
    return pointwise("abs", pointwise("sub", input, target, span=span), span=span)


def _bent(distance: Node, bend: float, span: SourceSpan) -> Node:
    """Return half the square of a distance up to ``bend``, and the straight line on from there."""
    near = pointwise("minimum", distance, bend, span=span)
    rest = pointwise("sub", distance, pointwise("mul", near, 0.5, span=span), span=span)
    return pointwise("mul", near, rest, span=span)


def _together(x: Node, reduction: str, span: SourceSpan) -> Node:
    """Return losses as they are, or their mean or sum."""
    if reduction == "none":
        return x
    count = math.prod(x.shape) if reduction == "mean" else 1
    return reduced("sum", x, list(range(len(x.shape))), False, span, count)


def _by_torch(name: str, span: SourceSpan, *args: Any, **options: Any) -> Any:
    """Return what torch's function of a name makes: of arguments that kernels do not know."""
    import torch

    function = attrgetter(f"nn.functional.{name}")(torch)
    return calls.called(name, function, args, options, span)


FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "mse_loss": mse_loss, "l1_loss": l1_loss, "smooth_l1_loss": smooth_l1_loss,
    "huber_loss": huber_loss, "cross_entropy": cross_entropy,
    "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
    "nll_loss": nll_loss, "kl_div": kl_div,
})  # fmt: skip
