"""Programs that came as data, looked at for a question or a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from db.records import ProgramRecord, RunRecord
from db.store import SqlStore
from recommender.hardware import HardwareProfile
from recommender.workload import Workload
from tilecore.errors import TileError
from tilecore.tile_config import KnobValue, TileConfig
from tuner_service.wiring import compile_target, program_desk

LIMIT_S = 60.0  # for all programs, and all shapes of one, that a request asks about

if TYPE_CHECKING:
    from recommender.program_table import ProgramTable, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SentProgram:
    """A program that came as data, at one problem on one device.

    Attributes:
        record: as it is stored.
        table: its configs.
        fixed: knobs that the asker has settled.
        unfit: what keeps it from being measured.
    """

    record: ProgramRecord
    table: ProgramTable
    fixed: Mapping[str, KnobValue]
    unfit: Sequence[str]

    def look_around(
        self, workload: Workload, hardware: HardwareProfile, centres: Sequence[TileConfig],
        also: Sequence[TileConfig],
    ) -> Rows:  # fmt: skip
        """Return what the table leaves out around some configs; nothing where that fails.

        A run goes on without: its table is enough to search.
        """
        from recommender.program_table import Rows

        try:
            return program_desk().around(
                self.record.document, dict(workload.problem), hardware, centres, also,
                fixed=self.fixed, threads=workload.threads,
            )  # fmt: skip
        except TileError as error:
            import structlog  # answers do without

            log = structlog.get_logger()
            log.warning("not looked around the fastest", program=self.record.name, why=str(error))
            return Rows()


def look_at(
    record: ProgramRecord, problem: Mapping[str, Any], hardware: HardwareProfile,
    fixed: Mapping[str, KnobValue], threads: int,
) -> SentProgram:  # fmt: skip
    """Return a stored program with its configs; raises as ``recommender.program_table`` does."""
    desk = program_desk()
    table = desk.table(
        record.digest, record.document, problem, hardware, compile_target(hardware),
        fixed=fixed, threads=threads,
    )  # fmt: skip
    unfit = desk.read(record.document).unfit
    return SentProgram(record=record, table=table, fixed=dict(fixed), unfit=unfit)


def sent_program(store: SqlStore, run: RunRecord) -> SentProgram:
    """Return the program that a run tunes, as when the run was queued.

    Raises:
        UnknownProgram: the program is gone (DB827).
        TileError: as ``look_at`` raises it.
    """
    record = store.programs.get(run.program_digest)
    problem = dict(run.workload.problem)
    return look_at(record, problem, run.hardware, run.spec["fixed"], run.workload.threads)
