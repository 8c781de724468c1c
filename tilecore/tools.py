"""``tilelang.tools``: work and traffic of a program, and pictures of layouts."""

from __future__ import annotations

import html
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilecore.errors import TypeMismatch
from tilecore.graph import build, evaluate
from tilecore.ir.dims import dimensions
from tilecore.ir.layout import Layout
from tilecore.ir.nodes import PrimFunc

LOG = logging.getLogger("tilecore.tools")
CELL, MARGIN, FONT = 34, 28, 11  # pixels
MAX_CELLS = 64 * 64


@dataclass(frozen=True, slots=True)
class AnalysisResult:
    """Work and traffic of all blocks of a program, padding of the last ones included.

    Attributes:
        total_flops: operations of matrix products, two per multiply-add.
        total_global_bytes: bytes read from and written to tensors by tile operations.
        read_bytes, write_bytes: the same by direction.
    """

    total_flops: int
    total_global_bytes: int
    read_bytes: int
    write_bytes: int

    @property
    def flops_per_byte(self) -> float:
        """Arithmetic intensity against tensors."""
        return self.total_flops / max(1, self.total_global_bytes)


class Analyzer:
    """``Analyzer.analysis(program, device)``."""

    @staticmethod
    def analysis(func: Any, device: Any = None) -> AnalysisResult:
        """Return the work and traffic of a program of static shapes.

        Args:
            func: a traced program.
            device: accepted for compatibility; nothing counted here depends on it.

        Raises:
            TypeMismatch: not a program, or one with dimensions known only at the call (TC202).
        """
        _ = device
        if not isinstance(func, PrimFunc):
            found = type(func).__name__
            raise TypeMismatch(expected="a program made by @T.prim_func", found=found)
        if dimensions(func):
            names = ", ".join(f"`{v.name}`" for v in dimensions(func))
            raise TypeMismatch(expected="a program of static shapes", found=f"dimensions {names}")
        graph = build(func)
        flops, read, written = (
            int(evaluate(e, {})) for e in (graph.work("fma"), graph.read_bytes, graph.write_bytes)
        )
        return AnalysisResult(flops, read + written, read, written)


def plot_layout(
    layout: Layout,
    save_directory: str | Path = "./tmp",
    name: str = "layout",
    colormap: str | None = None,
    verbose: bool = False,
    formats: str = "svg",
    view: str = "input",
    grid_shape: tuple[int, int] | None = None,
) -> Path:
    """Draw where each element of a tile lies, as an SVG picture, and return its path.

    One square per element; of a Fragment it shows thread and place in its registers, with a colour
    per thread, else the offset in memory, with a colour per bank of 128 bytes of float32.

    Args:
        layout: of at most two axes with 64 x 64 elements (leading axes are folded into rows).
        save_directory: folder of the picture, made if it is missing.
        name: file name without its ending.
        colormap: accepted for compatibility, as are the following.
        verbose: log the offsets as well.
        formats: "svg" is written, whatever is asked for.
        view: see colormap.
        grid_shape: see colormap.

    Raises:
        TypeMismatch: not a layout, or one with more elements (TC202).
    """
    _ = (colormap, view, grid_shape)
    if not isinstance(layout, Layout):
        raise TypeMismatch(expected="a layout", found=type(layout).__name__)
    if np.prod(layout.shape) > MAX_CELLS:
        raise TypeMismatch(expected=f"at most {MAX_CELLS} elements to draw", found=layout.shape)
    if formats not in ("svg", "all"):
        LOG.info("pictures are SVG; %s was asked for", formats)
    path = Path(save_directory) / f"{name}.svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg(layout, name), encoding="utf-8")
    if verbose:
        LOG.info("%s:\n%s", name, layout.table)
    return path


def svg(layout: Layout, title: str) -> str:
    """Return the picture of a layout."""
    colours, labels = _cells(layout)
    rows, columns = colours.shape
    width, height = 2 * MARGIN + columns * CELL, 2 * MARGIN + rows * CELL
    shown = html.escape(f"{title}: {layout.describe()}")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="{FONT}" text-anchor="middle">',
        f"<title>{shown}</title>",
        f'<text x="{width / 2}" y="{MARGIN / 3}" font-size="{FONT - 2}">{shown}</text>',
    ]
    for axis, count in ((0, rows), (1, columns)):
        for i in range(count):
            near, along = MARGIN * 0.75, MARGIN + (i + 0.6) * CELL
            x, y = (near - 8, along) if axis == 0 else (along - 3, near)
            lines.append(f'<text x="{x:.0f}" y="{y:.0f}" fill="#666">{i}</text>')
    for (i, j), colour in np.ndenumerate(colours):
        x, y = MARGIN + j * CELL, MARGIN + i * CELL
        lines.append(
            f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" stroke="#888" '
            f'fill="hsl({int(colour) * 137 % 360},60%,82%)"/>'
            f'<text x="{x + CELL / 2:.0f}" y="{y + CELL / 2 + 4:.0f}">{labels[i][j]}</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _cells(layout: Layout) -> tuple[np.ndarray[Any, Any], list[list[str]]]:
    """Return what colours each square, and what is written in it."""
    shape = (-1, layout.shape[-1])
    tables = [np.asarray(t).reshape(shape) for t in layout.coordinate_tables]
    if layout.name == "fragment":
        places = np.stack(tables[1:], -1) if len(tables) > 2 else tables[1]
        text = [
            [f"T{t}:{p}" for t, p in zip(*row, strict=True)]
            for row in zip(tables[0].tolist(), places.tolist(), strict=True)
        ]
        return tables[0], text
    offsets = layout.table.reshape(shape)
    return offsets % 32, [[str(o) for o in row] for row in offsets.tolist()]
