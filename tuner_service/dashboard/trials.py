"""Tables of trials: in turn or the fastest first, so many on a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import Query, Request

from tuner_service.dashboard.rendering import address

ON_A_PAGE = 500
Start = Annotated[int, Query(ge=0, le=10**6)]


class _Trial(Protocol):
    @property
    def config(self) -> Mapping[str, Any]: ...


Trial = TypeVar("Trial", bound=_Trial)


def trial_table(
    request: Request,
    trials: Sequence[Trial],
    by_time: Callable[[Trial], Any],
    order: str,
    start: int,
) -> dict[str, Any]:
    """Return what templates show of trials.

    Args:
        request: its address is that of the table.
        trials: in turn.
        by_time: the key that puts the fastest one first, where ``order`` is "time".
        order: of the table.
        start: how many trials earlier pages show.
    """
    ordered = sorted(trials, key=by_time) if order == "time" else trials
    follows, path = start + ON_A_PAGE, request.url.path
    shown = ordered[start:follows]
    has_more = follows < len(trials)
    return {
        "trials": shown,
        "knobs": list(dict.fromkeys(name for t in shown for name in t.config)),
        "count": len(trials),
        "order": order,
        "start": start,
        "first": address(path, {"order": order}) if start else None,
        "more": address(path, {"order": order}, start=str(follows)) if has_more else None,
        "by_time": address(path, {}, order="time"),
        "by_turn": path,
    }
