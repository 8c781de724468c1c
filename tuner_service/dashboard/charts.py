"""The charts of the dashboard: each returns one inline SVG that works without a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from markupsafe import Markup

from tuner_service.dashboard.svg import (
    LETTER,
    WIDTH,
    Axis,
    chart,
    element,
    label,
    line,
    log_axis,
    plain,
    shortened,
)
from tuner_service.dashboard.texts import config_text, micro

LEFT, RIGHT, TOP, GAP = 58.0, 14.0, 30.0, 6.0
SHADES = 10  # classes of dashboard.css that cells of a heat map have
ROW = 26.0
DOTS = 1500  # at most; of more trials some are left out, never from the line of the best


@dataclass(frozen=True, slots=True)
class Point:
    """A trial in the order of measuring: its number, time in microseconds and config."""

    number: int
    time_us: float
    config: Mapping[str, Any]

    @property
    def told(self) -> str:
        """What a dot says under the pointer."""
        return f"trial {self.number}: {micro(self.time_us)} µs; {config_text(self.config)}"


@dataclass(frozen=True, slots=True)
class Bar:
    """A labelled length; ``class_`` colours it."""

    name: str
    value: float
    text: str
    class_: str = "bar"


def best_over_trials(
    title: str, points: Sequence[Point], lines: Mapping[str, float | None], last: int = 0
) -> Markup:
    """Return times of trials by their number and the best so far, on a logarithmic axis.

    ``lines``: times (us) that go across, by name; ``last``: the number of trials planned.
    """
    height, bottom = 270.0, 228.0
    known = {name: us for name, us in lines.items() if us}
    y = log_axis([*(p.time_us for p in points), *known.values()], bottom, TOP)
    left = max(LEFT, GAP + LETTER * max(len(plain(tick)) for tick in y.ticks()))
    x = Axis(1, max(2, points[-1].number, last), left, WIDTH - RIGHT)
    return chart(
        title, height,
        *_frame(x, y, bottom),
        *(
            element("circle", element("title", p.told),
                    cx=x.at(p.number), cy=y.at(p.time_us), r=3, class_="dot")
            for p in points[:: 1 + len(points) // DOTS]
        ),
        *(line(left, y.at(us), WIDTH - RIGHT, y.at(us), f"across {n}") for n, us in known.items()),
        _best_line(points, x, y),
        *_legend({"best": min(p.time_us for p in points), **known}),
    )  # fmt: skip


def _best_line(points: Sequence[Point], x: Axis, y: Axis) -> Markup:
    best = list(accumulate((p.time_us for p in points), min))
    steps = [f"M{x.at(points[0].number):.1f} {y.at(best[0]):.1f}"]
    steps += [
        f"H{x.at(p.number):.1f}V{y.at(us):.1f}"
        for p, us, before in zip(points[1:], best[1:], best[:-1], strict=True)
        if us < before
    ]
    return element("path", d="".join([*steps, f"H{x.end:.1f}"]), class_="best-line")


def _frame(x: Axis, y: Axis, bottom: float) -> list[Markup]:
    shown = [line(x.start, bottom, x.end, bottom, "axis")]
    for tick in y.ticks():
        at = y.at(tick)
        shown += [
            line(x.start, at, x.end, at, "grid"),
            label(x.start - GAP, at + 4, plain(tick), anchor="end"),
        ]
    for tick in x.ticks():
        if tick == int(tick):
            text = f"{tick:.0f}"
            most = WIDTH - LETTER * len(text) / 2  # its middle, where it ends with the chart
            shown.append(label(min(x.at(tick), most), bottom + 16, text, anchor="middle"))
    shown.append(label(x.end, bottom + 34, "trial", anchor="end", class_="unit"))
    shown.append(label(2, 12, "µs", class_="unit"))
    return shown


def _legend(times: Mapping[str, float]) -> list[Markup]:
    found, at = [], LEFT
    for name, us in times.items():
        text = f"{name} {micro(us)}"
        kind = "best-line" if name == "best" else f"across {name}"
        found += [line(at, 8, at + 16, 8, kind), label(at + 20, 12, text)]
        at += 36 + 7.4 * len(text)
    return found


def bars(title: str, rows: Sequence[Bar], name_width: float = 118.0) -> Markup:
    """Return horizontal bars with their names before and their values behind them."""
    longest = max((r.value for r in rows), default=0.0) or 1.0
    room = 8 + 7.7 * max((len(r.text) for r in rows), default=0)
    full = WIDTH - name_width - room
    shown: list[Markup] = []
    for i, row in enumerate(rows):
        top, length = 4 + i * ROW, max(1.0, full * row.value / longest)
        shown += [
            label(name_width - 8, top + 14, shortened(row.name, name_width), anchor="end"),
            element("rect", x=name_width, y=top, width=length, height=ROW - 8, rx=2,
                    class_=row.class_),
            label(name_width + length + 6, top + 14, row.text),
        ]  # fmt: skip
    return chart(title, len(rows) * ROW + 6, *shown)


@dataclass(frozen=True, slots=True)
class Cell:
    """The best time (us) of two values of knobs, and what there is to tell of it."""

    time_us: float
    text: str


def heat_map(
    title: str, names: tuple[str, str], values: tuple[Sequence[str], Sequence[str]],
    cells: Mapping[tuple[str, str], Cell], marks: Mapping[str, tuple[str, str]],
) -> Markup:  # fmt: skip
    """Return cells shaded by the logarithm of their times; ``marks``: class -> cell to outline."""
    columns, rows = values
    left = 16 + 7 * max(len(shortened(v, 80)) for v in rows)
    wide, high = (WIDTH - left - 2) / len(columns), 30.0
    shade = log_axis([c.time_us for c in cells.values()], 0, SHADES)
    shown = [label(2, 12, f"{names[1]} ↓  {names[0]} →", class_="unit")]
    every = max(1, round(40 / wide))
    for j, value in enumerate(columns):
        if j % every == 0:
            middle = left + (j + 0.5) * wide
            shown.append(label(middle, 32, shortened(value, wide * every), anchor="middle"))
    for i, row in enumerate(rows):
        top = 40 + i * high
        shown.append(label(left - 6, top + 19, shortened(row, 80), anchor="end"))
        for j, column in enumerate(columns):
            cell = cells.get((column, row))
            shown += _cell(left + j * wide, top, wide, high, cell, shade)
    for class_, (column, row) in marks.items():
        if column in columns and row in rows:
            at = left + columns.index(column) * wide, 40 + rows.index(row) * high
            inset = min(2.5 if class_ == "best" else 5.5, wide / 8)
            shown.append(element("rect", x=at[0] + inset, y=at[1] + inset, width=wide - 2 * inset,
                                 height=high - 2 * inset, class_=f"mark {class_}"))  # fmt: skip
    return chart(title, 44 + len(rows) * high, *shown, class_="chart heat")


def _cell(
    x: float, y: float, wide: float, high: float, cell: Cell | None, shade: Axis
) -> list[Markup]:
    gap = min(1.0, wide / 8)
    place = {"x": x + gap, "y": y + gap, "width": wide - 2 * gap, "height": high - 2 * gap}
    if cell is None:
        return [element("rect", **place, class_="none")]
    number = min(SHADES - 1, int(shade.at(cell.time_us)))
    box = element("rect", element("title", cell.text), **place, class_=f"heat-{number}")
    text = micro(cell.time_us)
    if 7 * len(text) > wide:
        return [box]
    return [box, label(x + wide / 2, y + 19, text, anchor="middle", class_=f"on-{number}")]
