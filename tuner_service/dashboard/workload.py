"""One workload on one device: the best measured time over two knobs that the reader chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from markupsafe import Markup

from recommender.measurement import MeasureStatus, Protocol
from tilecore import kernels
from tuner_service.dashboard.charts import Cell, heat_map
from tuner_service.dashboard.rendering import HOME, page
from tuner_service.dashboard.texts import config_text, micro, workload_text
from tuner_service.errors import InvalidRequest, NotFound
from tuner_service.hardware import find_hardware
from tuner_service.routes.context import Store
from tuner_service.routes.measurements import list_measurements, log_query
from tuner_service.schemas import MeasurementOut

router = APIRouter(prefix=HOME)
LOOKED_AT = 5000  # the fastest measurements: beyond them cells stay empty
LISTED = 12
Key = Annotated[str, Query(max_length=64)]
Knob = Annotated[str | None, Query(max_length=128)]


@router.get("/workload")
def workload(
    request: Request,
    store: Store,
    workload: Key,
    hardware: Annotated[str, Query(max_length=200)],
    protocol: Protocol | None = None,
    x: Knob = None,
    y: Knob = None,
) -> Response:
    """Return the map of what was measured of a workload on a device."""
    device = find_hardware(store, hardware)
    found, shown = _fastest(store, workload, hardware, protocol)
    if not found:
        raise NotFound(path=f"a measurement of {workload} on {device.name}", hint="see the log")
    knobs = _by_influence(found)
    chosen = _chosen(knobs, x, y)
    default = _default(found[0], device.kind)
    what = {"kernel": found[0].kernel, "problem": found[0].problem}
    unique = {config_text(m.config): m for m in reversed(found)}
    best = sorted(unique.values(), key=lambda m: m.latency_us or 0.0)
    return page(
        request, "workload.html",
        title=workload_text(what), device=device, key=workload, hardware=hardware,
        knobs=knobs, chosen=chosen, protocol=shown.value, protocols=[p.value for p in Protocol],
        count=len(found), is_all=len(found) < LOOKED_AT, best=best[:LISTED], default=default,
        docs=_docs(found[0].kernel, device.kind),
        drawn=None if chosen is None else _drawn(found, chosen, default),
    )  # fmt: skip


def _fastest(
    store: Store, key: str, hardware: str, protocol: Protocol | None
) -> tuple[Sequence[MeasurementOut], Protocol]:
    """Return measurements of one protocol, fastest first: SCREEN where there are some."""
    for wanted in (protocol,) if protocol else (Protocol.SCREEN, Protocol.CONFIRM):
        query = log_query(
            store, workload=key, hardware=hardware, protocol=wanted, status=MeasureStatus.OK,
            best=True,
        )  # fmt: skip
        found = list_measurements(store, query, LOOKED_AT).items
        if found:
            return found, wanted
    return [], protocol or Protocol.SCREEN


def _by_influence(found: Sequence[MeasurementOut]) -> list[str]:
    """Return the knobs, first those whose values part the best times most."""
    best: dict[str, dict[Any, float]] = {}
    for m in found:
        for name, value in m.config.items():
            best.setdefault(name, {}).setdefault(value, m.latency_us or 0.0)  # fastest come first
    spread = {name: max(of.values()) / min(of.values()) for name, of in best.items()}
    return sorted(best, key=lambda name: (-spread[name], name))


def _chosen(knobs: Sequence[str], x: str | None, y: str | None) -> tuple[str, str] | None:
    """Return the knobs across and down, None where there are not two.

    Raises:
        InvalidRequest: one is unknown, or both are the same (SV901).
    """
    for place, name in (("x", x), ("y", y)):
        if name is not None and name not in knobs:
            expected = ", ".join(knobs)
            raise InvalidRequest(message=f"{place}: expected one of {expected}, found {name}")
    if len(knobs) < 2:
        return None
    across = x or next(k for k in knobs if k != y)
    down = y or next(k for k in knobs if k != across)
    if across == down:
        raise InvalidRequest(message=f"y: expected another knob than x, found {down} twice")
    return across, down


def _default(m: MeasurementOut, kind: str) -> dict[str, Any]:
    """Return the config of who tunes nothing; of a program that was sent it is not known here."""
    definition = kernels.KERNELS.get(m.kernel)
    return {} if definition is None else dict(definition.on(kind).default_config(kind).items_)


def _docs(kernel: str, kind: str) -> dict[str, str]:
    """Return what the knobs of a kernel of the library do."""
    definition = kernels.KERNELS.get(kernel)
    return {} if definition is None else {k.name: k.doc for k in definition.knobs_of(kind)}


def _drawn(
    found: Sequence[MeasurementOut], chosen: tuple[str, str], default: dict[str, Any]
) -> Markup | None:
    cells: dict[tuple[str, str], Cell] = {}
    across, down = chosen
    known = [m for m in found if across in m.config and down in m.config]
    if not known:
        return None
    for m in known:
        place = str(m.config[across]), str(m.config[down])
        us = m.latency_us or 0.0
        cells.setdefault(place, Cell(us, f"{micro(us)} µs: {config_text(m.config)}"))
    values = _values(known, across), _values(known, down)
    marks = {"best": (str(known[0].config[across]), str(known[0].config[down]))}
    if across in default and down in default:
        marks["default"] = str(default[across]), str(default[down])
    return heat_map(f"Best time over {across} and {down}", chosen, values, cells, marks)


def _values(found: Sequence[MeasurementOut], knob: str) -> list[str]:
    values = {m.config[knob] for m in found}
    numbers = sorted(v for v in values if isinstance(v, int))
    return [str(v) for v in (*numbers, *sorted(v for v in values if isinstance(v, str)))]
