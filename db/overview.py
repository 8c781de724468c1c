"""Overview: how many of everything there are, for who watches the system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import defer

from db.models import FacetRow, HardwareRow, MeasurementRow, NodeRow, RunRow, TrialRow
from db.service_models import ModelRow
from db.session import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveModel:
    """A cost model that answers."""

    origin: str
    trained_on: int
    metrics: Mapping[str, float]
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of rows, and the active cost models.

    Attributes:
        runs: by state.
        trials: by state.
        lost_executions: executions of trials whose worker or coordinator was lost.
        measurements: by kernel and status.
        models: the active ones, by kernel and family of devices.
        devices: of the cluster's nodes, by the name of the hardware and the state of the node.
    """

    runs: Mapping[str, int]
    trials: Mapping[str, int]
    lost_executions: int
    measurements: Mapping[tuple[str, str], int]
    models: Mapping[tuple[str, str], ActiveModel]
    devices: Mapping[tuple[str, str], int]


def count(database: Database) -> Counts:
    """Count (on one million measurements some tenths of a second: ask seldom)."""
    lost = func.coalesce(func.sum(TrialRow.attempt - 1), 0)
    facets = (
        select(MeasurementRow.facet_id, func.count().label("found"))
        .group_by(MeasurementRow.facet_id)
        .subquery()
    )
    kinds = (
        select(FacetRow.kernel, FacetRow.status, func.sum(facets.c.found))
        .join(facets, facets.c.facet_id == FacetRow.id)
        .group_by(FacetRow.kernel, FacetRow.status)
    )
    devices = (
        select(HardwareRow.name, NodeRow.state, func.sum(NodeRow.devices))
        .join(HardwareRow, HardwareRow.id == NodeRow.hardware_id)
        .group_by(HardwareRow.name, NodeRow.state)
    )
    models = (
        select(ModelRow)
        .where(ModelRow.state == "active")
        .options(defer(ModelRow.blob))
        .order_by(ModelRow.kernel, ModelRow.family)
    )
    with database.read() as session:
        runs = session.execute(select(RunRow.state, func.count()).group_by(RunRow.state))
        trials = session.execute(select(TrialRow.state, func.count()).group_by(TrialRow.state))
        return Counts(
            runs=dict(row.tuple() for row in runs),
            trials=dict(row.tuple() for row in trials),
            lost_executions=int(
                session.execute(select(lost).where(TrialRow.attempt > 1)).scalar_one()
            ),
            measurements={(k, s): int(n) for k, s, n in session.execute(kinds)},
            models={(row.kernel, row.family): _active(row) for row in session.scalars(models)},
            devices={(name, s): int(n) for name, s, n in session.execute(devices)},
        )


def _active(row: ModelRow) -> ActiveModel:
    return ActiveModel(
        origin=row.origin,
        trained_on=row.trained_on,
        metrics={n: float(v) for n, v in row.metrics.items() if isinstance(v, (int, float))},
        created_at=row.created_at,
    )
