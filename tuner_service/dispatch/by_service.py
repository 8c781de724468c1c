"""Dispatch tables that a service makes: a program of the user's is traced here, sent as data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recommender.dispatch.table import Choice
from recommender.hardware import nearest_profile
from recommender.shapes import Sizes
from tilecore.dispatch_table import DispatchTable
from tuner_service.client import ServiceClient, Watch
from tuner_service.dispatch.programs import FunctionForDispatch
from tuner_service.dispatch.shapes import AskedTable
from tuner_service.jobs import Effort
from tuner_service.settings import Settings
from tuner_service.wiring import detected_host


def ask(
    settings: Settings, url: str, asked: AskedTable, choice: Choice, *,
    trust_predictions: bool = False, effort: Effort | None = None, watch: Watch = lambda now: None,
) -> DispatchTable:  # fmt: skip
    """Return the table that a service makes of what it knows, or measures now, with an effort.

    ``watch`` is told how that stands. Who asks the same again finds the same runs.

    Raises:
        Refused, ServiceUnreachable: the service's answer (SV918, SV917).
        TileError: the program's own fault, see ``FunctionForDispatch.opened``.
    """
    wanted: dict[str, Any] = {
        "shapes": [{"sizes": dict(s), "weight": weight} for s, weight in asked.counts],
        "weighting": asked.weighting, "samples": asked.samples, "threads": asked.threads,
        "hardware": asked.hardware, "tolerance": choice.tolerance,
        "max_configs": choice.max_configs,
    }  # fmt: skip
    if effort is None:
        wanted["trust_predictions"] = trust_predictions
    else:
        wanted |= {"max_trials": effort.max_trials, "tuned": watch}
    sizes = {dim: _wire(of_dim) for dim, of_dim in asked.sizes.items()}
    with ServiceClient(url, settings.key) as client:
        if not isinstance(asked.program, FunctionForDispatch):
            return client.dispatch_table(asked.kernel, asked.problem, sizes, **wanted)
        device = None if asked.hardware is None else nearest_profile(asked.hardware)
        opened = asked.program.opened(asked, device or detected_host())
        stay = {name: value for name, value in opened.given.items() if name in opened.sizes}
        table = client.dispatch_table_of(opened.program, stay, sizes, **wanted)
        return asked.program.completed(replace(table, problem=opened.given))


def _wire(sizes: Sizes) -> str | list[int]:
    return f"{sizes.low}:{sizes.high}" if sizes.is_range else list(sizes.values)
