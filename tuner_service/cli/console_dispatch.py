"""What ``tilecore dispatch`` prints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from tilecore.dispatch_table import DispatchTable, Served
from tuner_service.cli.console import short_config

ROUNDING = 1e-9


class TuningLines:
    """Prints a line whenever a service's tuning of a table has come further."""

    def __init__(self, console: Console) -> None:
        self._console, self._said = console, ""

    def __call__(self, now: Mapping[str, Any]) -> None:
        """Take in a ``DispatchTuningOut``."""
        states = ", ".join(f"{count} {state}" for state, count in now["runs_by_state"].items())
        text = f"{now['stage']} {len(now['runs'])} shapes: {states}"
        if text != self._said:
            self._console.print(text, highlight=False)
            self._said = text


def print_dispatch_table(console: Console, table: DispatchTable, kind: str = "cpu") -> None:
    """Print which config serves which sizes, what that is expected to cost, and why it is so."""
    fixed = " ".join(f"{k}={v}" for k, v in table.problem.items())
    console.print(f"{table.kernel} {fixed} on {table.hardware}", highlight=False, soft_wrap=True)
    shown = Table()
    for title in ("config", ", ".join(table.dims), "shapes", "calls", "mean loss", "worst"):
        shown.add_column(title, justify="right")
    shown.add_column("times")
    for sizes, number, served in _parts(table):
        weight = math.fsum(s.weight for s in served)
        lost = math.fsum(s.weight * s.loss for s in served)
        sources = ", ".join(dict.fromkeys(s.source for s in served))
        shown.add_row(
            str(number + 1), sizes, str(len(served)), f"{weight:.1%}",
            f"{lost / weight:.1%}" if weight else "", f"{max(s.loss for s in served):.1%}", sources,
        )  # fmt: skip
    console.print(shown)
    for number, config in enumerate(table.configs, 1):
        console.print(f"{number}. {short_config(config, kind)}", highlight=False, soft_wrap=True)
    console.print(f"{table.method}; {table.reason}", highlight=False, soft_wrap=True)
    share = table.measured_share()
    text = (
        f"expected loss: mean {table.mean_loss:.1%}, worst {table.worst_loss:.1%}; {share:.0%} of "
        "the calls rest on measurements"
    )
    if share < 1 - ROUNDING:
        text += "; what predictions lose is not known: --tune measures it"
    console.print(text, highlight=False, soft_wrap=True)


def _parts(table: DispatchTable) -> list[tuple[str, int, list[Served]]]:
    """Return ranges of sizes, or shapes by config, with what is known of them."""
    if table.ranges:
        return [
            (
                f"{r.first} to {r.last}" if r.first < r.last else f"{r.first}",
                r.config,
                [s for s in table.shapes if r.first <= s.shape[0] <= r.last],
            )
            for r in table.ranges
        ]
    found = []
    for number in range(len(table.configs)):
        served = [s for s in table.shapes if s.config == number]
        names = ["x".join(map(str, s.shape)) for s in served]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        found.append((", ".join(names[:4]) + more, number, served))
    return found
