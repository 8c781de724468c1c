"""SVG as text: escaped elements and the axes of charts. Colours are classes of dashboard.css."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 480  # units of a chart; its text is readable where that is 400 pixels
LETTER = 7.6  # units that a letter of a chart takes

TICK_STEPS = ((1,), (1, 2, 5), (1, 1.5, 2, 3, 5, 7))  # coarse to fine


def element(name: str, *children: object, **attributes: object) -> Markup:
    """Return an element; ``class_`` is ``class``, ``_`` a hyphen, None leaves an attribute out."""
    given = {
        key.rstrip("_").replace("_", "-"): value
        for key, value in attributes.items()
        if value is not None
    }
    text = Markup("").join(Markup(' {}="{}"').format(k, _number(v)) for k, v in given.items())
    inner = Markup("").join(escape(child) for child in children)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), text, inner)


def chart(title: str, height: float, *children: object, class_: str = "chart") -> Markup:
    """Return a drawing with a title that screen readers read."""
    return element(
        "svg", element("title", title), *children,
        class_=class_, viewBox=f"0 0 {WIDTH} {height:g}", role="img",
    )  # fmt: skip


def label(x: float, y: float, text: object, *, anchor: str = "start", class_: str = "") -> Markup:
    """Return a text at a place."""
    return element("text", text, x=x, y=y, text_anchor=anchor, class_=class_ or None)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """Return a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def shortened(text: str, width: float) -> str:
    """Return a text that fits into so many units."""
    most = max(1, int(width / LETTER))
    return text if len(text) <= most else text[: most - 1] + "…"


def plain(value: float) -> str:
    """Return a round value as an axis shows it."""
    return f"{value:,.6g}" if value < 1 else f"{value:,.10g}"


def _number(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


@dataclass(frozen=True, slots=True)
class Axis:
    """Where values lie between two ends, evenly or by their logarithm.

    Attributes:
        low, high: values at the ends.
        start, end: units at the ends.
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the place of a value."""
        low, high, v = (self._scaled(x) for x in (self.low, self.high, value))
        share = 0.5 if high == low else (v - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round values between the ends, few."""
        if not self.is_log or self.high < 3 * self.low:
            return _even_ticks(self.low, self.high)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        found: list[float] = []
        for steps in TICK_STEPS:
            every = [s * 10.0**e for e in range(first, last + 1) for s in steps]
            found = [t for t in every if self.low <= t <= self.high]
            if len(found) >= 3:
                break
        return found[:: 1 + len(found) // 8]

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.is_log else value


def _even_ticks(low: float, high: float) -> list[float]:
    if high <= low:
        return [low]
    rough = (high - low) / 6
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= rough)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step) + 1)]


def log_axis(values: Iterable[float], start: float, end: float) -> Axis:
    """Return an axis for positive values, with a little room at both ends."""
    known: Sequence[float] = list(values)
    return Axis(min(known) * 0.93, max(known) * 1.07, start, end, is_log=True)
