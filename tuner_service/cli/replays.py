"""tilecore replay: how fast searches find the best of recorded spaces, as a table and a drawing."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from recommender.recorded import RecordedSpace
from recommender.replay import replay
from recommender.search import STRATEGIES
from recommender.transfer import FIRST, Sources
from tilecore.errors import InvalidConfig
from tuner_service.errors import InvalidRequest

Curves = NDArray[np.float64]  # a row per seed: fraction of the best speed after each trial
CHECKPOINTS = (1, 4, 8, 16, 32, 64, 100, 200, 400, 800)
WIDTH, HEIGHT, MARGIN = 640, 360, 48  # of the drawing, pixels
COLOURS = ("#1b6ca8", "#c0392b", "#27803b", "#8e44ad", "#b9770e", "#117a65")


def replayed(
    space: RecordedSpace, strategy: str, *, trials: int, seeds: int, sources: Sources | None = None
) -> Curves:
    """Return the curves of a strategy; ``sources``: what is known of other devices.

    Raises:
        InvalidConfig: there is no such strategy (TC303).
    """
    if strategy not in STRATEGIES:
        expected = f"one of {', '.join(STRATEGIES)}"
        raise InvalidConfig(knob="strategy", value=strategy, expected=expected)
    trials = min(trials, len(space))
    landscape, first = space.landscape(), []
    if sources is not None:
        landscape, first = sources.landscape(landscape), sources.cover(FIRST)
    made = [
        replay(
            space, STRATEGIES[strategy], trials=trials, seed=seed, landscape=landscape, first=first
        )
        for seed in range(seeds)
    ]
    return np.stack(made)


def print_curves(console: Console, found: Mapping[str, Curves]) -> None:
    """Print what is reached after some numbers of trials: the mean over seeds, the worst seed."""
    longest = max(c.shape[1] for c in found.values())
    marks = [n for n in CHECKPOINTS if n < longest] + [longest]
    title = "fraction of the best speed after n trials: mean (worst seed)"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))  # 80 columns
    table.add_column("space, strategy", overflow="fold")
    for mark in marks:
        table.add_column(str(mark), justify="right")
    for title, curves in found.items():
        cells = [
            f"{curves[:, n - 1].mean():.3f}\n({curves[:, n - 1].min():.3f})"
            if n <= curves.shape[1]
            else ""
            for n in marks
        ]
        table.add_row(title, *cells)
    console.print(table)


def draw(found: Mapping[str, Curves], path: Path) -> None:
    """Write the mean curves as an SVG drawing; trials on a logarithmic axis."""
    longest = max(c.shape[1] for c in found.values())
    lowest = min(float(c.mean(axis=0).min()) for c in found.values())
    floor = np.floor(lowest * 10) / 10

    def point(trial: int, value: float) -> str:
        across = np.log(trial) / max(np.log(longest), 1e-9)
        up = (value - floor) / (1.0 - floor) if floor < 1 else 1.0
        x = MARGIN + across * (WIDTH - 2 * MARGIN)
        return f"{x:.1f},{HEIGHT - MARGIN - up * (HEIGHT - 2 * MARGIN):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11">'
    ]
    for value in np.linspace(floor, 1.0, 6):
        left, right = point(1, value), point(longest, value)
        x, y = left.split(",")
        parts.append(f'<polyline points="{left} {right}" stroke="#ddd" fill="none"/>')
        parts.append(f'<text x="{float(x) - 34:.1f}" y="{float(y) + 4:.1f}">{value:.2f}</text>')
    for mark in [n for n in CHECKPOINTS if n < longest] + [longest]:
        x, y = point(mark, floor).split(",")
        parts.append(f'<text x="{x}" y="{float(y) + 16:.1f}" text-anchor="middle">{mark}</text>')
    for number, (title, curves) in enumerate(found.items()):
        colour = COLOURS[number % len(COLOURS)]
        mean = curves.mean(axis=0)
        line = " ".join(point(i + 1, float(v)) for i, v in enumerate(mean))
        parts.append(f'<polyline points="{line}" stroke="{colour}" fill="none" stroke-width="2"/>')
        down = 16 + 14 * number
        text = f'<text x="{MARGIN}" y="{down}" fill="{colour}">{html.escape(title)}</text>'
        parts.append(text)
    try:
        path.write_text("\n".join([*parts, "</svg>", ""]), encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(message=f"--plot {path}: {error.strerror}") from error


def run(
    console: Console, paths: Sequence[Path], strategies: Sequence[str], *, trials: int, seeds: int,
    known: Sequence[Path] = (), plot: Path | None = None,
) -> None:  # fmt: skip
    """Replay spaces, print the curves, draw them.

    Args:
        console: to print on.
        paths: recorded spaces.
        strategies: names of strategies, each with its curve.
        trials: configurations measured, at most.
        seeds: runs of each strategy.
        known: spaces of the same kernel on other devices, which the searches know.
        plot: an SVG file.

    Raises:
        InvalidRecording: a file holds no space (RC607).
        InvalidConfig: no such strategy, or spaces with other knobs (TC303).
        NotEnoughMeasurements: in a known space hardly anything worked (RC606).
        InvalidRequest: the drawing cannot be written (SV901).
    """
    others = [RecordedSpace.load(path) for path in known]
    found: dict[str, Curves] = {}
    for path in paths:
        space = RecordedSpace.load(path)
        for other in others:
            if other.knobs != space.knobs:
                raise InvalidConfig(
                    knob="known", value=other.name, expected=f"the knobs of {space.name}"
                )
        sources = Sources.of(space, others) if others else None
        for strategy in strategies:
            found[f"{space.name}, {strategy}"] = replayed(
                space, strategy, trials=trials, seeds=seeds, sources=sources
            )
    print_curves(console, found)
    if plot is not None:
        draw(found, plot)
        console.print(f"drawn in {plot}")
