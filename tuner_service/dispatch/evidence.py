"""What the log says of a shape, as evidence for a dispatch table."""

from __future__ import annotations

from collections.abc import Sequence

from db.records import MeasurementQuery
from db.store import SqlStore
from recommender.dispatch.question import DispatchQuestion
from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.workload import Workload

NEWEST = 2000  # measurements of one shape that are looked at


class LoggedSessions:
    """Evidence: the confirmed times of a workload's newest run, and all screened ones.

    Confirmed times of one run were taken side by side. Those of another run may differ by more
    than a table's tolerance, and each would make a config the best that is none.
    """

    def __init__(self, store: SqlStore, question: DispatchQuestion) -> None:
        self._store, self._question = store, question

    def __call__(self, workload: Workload) -> Sequence[Measurement]:
        """Return what holds for today's program, toolchain and device, newest first."""
        query = MeasurementQuery(
            workload_key=workload.key,
            hardware_key=self._question.hardware.key,
            program_digest=self._question.digest(dict(workload.problem)),
            toolchain_key=self._question.toolchain.key,
            status=MeasureStatus.OK,
        )
        records = self._store.page(query, limit=NEWEST).items
        confirmed = (r.run for r in records if r.measurement.protocol is Protocol.CONFIRM)
        session = next(confirmed, None)
        return [
            r.measurement
            for r in records
            if r.measurement.protocol is Protocol.SCREEN or r.run == session
        ]
