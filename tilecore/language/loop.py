"""Loops: T.Parallel, T.Pipelined, T.Persistent, T.serial and its kin, T.While; ends of loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tilecore.errors import TypeMismatch, UnsupportedSyntax
from tilecore.frontend.builder import current
from tilecore.frontend.control import jump
from tilecore.frontend.loops import LoopSpec, integer, loop, nest, persistent
from tilecore.ir import nodes
from tilecore.ir.expr import Const, ExprLike, as_bool, int_value
from tilecore.language.kernel import launch_of


def Parallel(
    *extents: ExprLike,
    coalesced_width: int | None = None,
    loop_layout: Any = None,
    prefer_async: bool | None = None,
    annotations: dict[str, Any] | None = None,
) -> LoopSpec:
    """Return a nest over ``extents`` whose iterations are independent of each other.

    Args:
        extents: one extent per loop variable.
        coalesced_width: hint, changes speed only: a GPU's threads have that many neighbours along
            the last loop, where an access of so many is possible.
        loop_layout: hint without effect here; so is the following.
        prefer_async: see loop_layout.
        annotations: kept on the node.

    Raises:
        TypeMismatch: no extent, or one that is not an integer (TC202).
    """
    _ = (loop_layout, prefer_async)
    hints = {} if coalesced_width is None else {nodes.COALESCED_WIDTH: coalesced_width}
    return nest("parallel", extents, {**hints, **(annotations or {})} or None)


def Pipelined(
    start: ExprLike,
    stop: ExprLike | None = None,
    num_stages: ExprLike = 0,
    order: list[int] | None = None,
    stage: list[int] | None = None,
    sync: Any = None,
    group: Any = None,
    annotations: dict[str, Any] | None = None,
) -> LoopSpec:
    """Return a serial loop whose copies and computation may overlap.

    Args:
        start: first value, or the trip count if ``stop`` is not given.
        stop: end of the range.
        num_stages: how many iterations may be in flight.
        order: order of the statements, for experts.
        stage: stage of each statement, for experts.
        sync: accepted for compatibility.
        group: accepted for compatibility.
        annotations: kept on the node.

    Raises:
        TypeMismatch: a bound or ``num_stages`` is not an integer, or is negative (TC202).
    """
    _ = (sync, group)
    stages = integer(num_stages, "num_stages")
    known = int_value(stages)
    if known is not None and known < 0:
        raise TypeMismatch(expected="num_stages of at least 0", found=known)
    notes: dict[str, Any] = {"num_stages": stages if known is None else known}
    notes |= {k: tuple(v) for k, v in (("order", order), ("stage", stage)) if v is not None}
    return loop("pipelined", start, stop, annotations={**notes, **(annotations or {})})


def Persistent(
    domain: Sequence[ExprLike],
    wave_size: ExprLike,
    index: ExprLike,
    group_size: ExprLike | None = 8,
    num_stages: int = 0,
    *,
    annotations: dict[str, Any] | None = None,
) -> LoopSpec:
    """Return a loop over the tiles of ``domain`` that fall to this block.

    Block ``index`` of ``wave_size`` blocks takes the tiles index, index + wave_size, ... in
    row-major order.

    Args:
        domain: number of tiles per axis; one loop variable each.
        wave_size: how many blocks share the tiles.
        index: the number of this block.
        group_size: hint, changes the order of tiles on a GPU; so do the following.
        num_stages: see group_size.
        annotations: kept on the node.

    Raises:
        TypeMismatch: no axis, or an extent that is not an integer (TC202).
    """
    _ = (group_size, num_stages)
    return persistent(tuple(domain), wave_size, index, annotations)


def serial(
    start: ExprLike,
    stop: ExprLike | None = None,
    step: ExprLike | None = None,
    annotations: dict[str, Any] | None = None,
) -> LoopSpec:
    """Return a loop that runs in order, as ``range`` does."""
    return loop("serial", start, stop, 1 if step is None else step, annotations)


def unroll(
    start: ExprLike,
    stop: ExprLike | None = None,
    step: ExprLike | None = None,
    explicit: bool = False,
    unroll_factor: int | None = None,
    annotations: dict[str, Any] | None = None,
) -> LoopSpec:
    """Return a loop that the code generator repeats in place.

    Args:
        start: first value, or the trip count if ``stop`` is not given.
        stop: end of the range.
        step: distance of the values.
        explicit: hint, changes speed only; so does the following.
        unroll_factor: see explicit.
        annotations: kept on the node.
    """
    _ = (explicit, unroll_factor)
    return loop("unroll", start, stop, 1 if step is None else step, annotations)


def loop_break() -> None:
    """Leave the innermost serial loop, as ``break`` does.

    Raises:
        UnsupportedSyntax: there is no loop that runs in order (TC101).
    """
    if jump(current(), "break"):
        raise UnsupportedSyntax(expected="T.loop_break in T.serial", found="a Python loop")


@contextmanager
def While(condition: ExprLike) -> Iterator[None]:
    """Run the body while ``condition``, computed anew before each time, holds: ``with T.While(c)``.

    Raises:
        TypeMismatch: the condition is known while tracing, so that no iteration changes it (TC202).
    """
    test = as_bool(condition)
    if isinstance(test, Const):
        raise TypeMismatch(expected="a condition that a loop can change", found=f"{condition}")
    builder = current()
    with builder.open("while") as frame:
        yield
    builder.emit(nodes.While(test, frame.body(), frame.span))


def thread_return() -> None:
    """End the kernel for the threads that come here.

    Raises:
        UnsupportedSyntax: inside T.Parallel, whose iterations are not threads (TC101).
        ScopeError: outside T.Kernel (TC104).
    """
    builder = current()
    launch_of("thread_return")
    if builder.find("parallel") is not None:
        raise UnsupportedSyntax(
            expected="T.thread_return outside T.Parallel", found="T.thread_return inside of it"
        )
    builder.emit(nodes.Jump("return", builder.span))


def vectorized(
    start: ExprLike, stop: ExprLike | None = None, annotations: dict[str, Any] | None = None
) -> LoopSpec:
    """Return a loop whose iterations become lanes of vector instructions."""
    return loop("vectorized", start, stop, annotations=annotations)


def grid(*extents: ExprLike) -> LoopSpec:
    """Return a nest of serial loops over ``extents``."""
    return nest("serial", extents)
