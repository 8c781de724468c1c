"""Devices by family: a cost model of a kernel learns from measurements of one family's devices."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from db.models import FacetRow, HardwareRow
from db.rows import hardware_of
from recommender.measurement import MeasureStatus


def devices_by_family(session: Session, kernel: str) -> dict[str, Sequence[HardwareRow]]:
    """Return the devices that have an OK measurement of a kernel, or had one, by family."""
    measured = select(FacetRow.hardware_id).where(
        FacetRow.kernel == kernel, FacetRow.status == MeasureStatus.OK.value
    )
    query = select(HardwareRow).where(HardwareRow.id.in_(measured)).order_by(HardwareRow.id)
    found: dict[str, list[HardwareRow]] = {}
    for row in session.scalars(query):
        found.setdefault(hardware_of(row).family, []).append(row)
    return dict(found)
