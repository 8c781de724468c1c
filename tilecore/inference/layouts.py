"""Layout annotations: checked here, honoured where the target has layouts to choose."""

from __future__ import annotations

from tilecore.errors import LayoutConflict
from tilecore.ir.layout import Layout
from tilecore.ir.nodes import Annotate, KernelLaunch
from tilecore.ir.visitor import walk


def check(launch: KernelLaunch) -> None:
    """Check every ``T.annotate_layout`` of a launch.

    A layout changes where elements lie, never their values. On a CPU lanes and panels follow from
    the gemms, so a valid annotation is accepted and has no effect; an impossible one is an error.

    Raises:
        LayoutConflict: the layout has another shape than its buffer, or puts two elements in one
            place (TC301).
    """
    for stmt in walk(launch):
        if not isinstance(stmt, Annotate) or stmt.key != "layout":
            continue
        for buffer, layout in stmt.value.items():
            if not isinstance(layout, Layout):
                continue
            if buffer.static_shape is not None and layout.shape != buffer.static_shape:
                raise LayoutConflict(
                    buffer=buffer.name,
                    reason=f"expected layout shape {buffer.static_shape}, found {layout.shape}",
                    span=stmt.span,
                )
            if not layout.is_injective:
                raise LayoutConflict(
                    buffer=buffer.name,
                    reason="the annotated layout puts two elements in one place",
                    span=stmt.span,
                    hint="make the layout one-to-one, or drop the annotation",
                )
