"""Changes of runs that are there: what REST and the command line ask of one, or of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from db.errors import BudgetUsedUp, IllegalTransition
from db.records import RunRecord
from db.store import SqlStore


def extend(
    store: SqlStore, run_id: str, *, trials: int, seconds: float, idempotency_key: str | None = None
) -> tuple[RunRecord, bool]:
    """Give a run more trials and seconds; return it and whether this extended it.

    One that has ended, and is of other code than there is now, begins again.

    Raises:
        DatabaseError: as ``RunRequests.extend`` raises it.
    """

    def ask(renewed: Sequence[int] = ()) -> tuple[RunRecord, bool]:
        return store.runs.extend(
            run_id, trials=trials, seconds=seconds, idempotency_key=idempotency_key, renewed=renewed
        )

    try:
        return ask()
    except BudgetUsedUp:
        return ask([run.id for run in of_other_code([store.runs.get(run_id)])])


def extend_group(
    store: SqlStore, group: str, *, trials: int, seconds: float, idempotency_key: str | None = None
) -> tuple[Sequence[RunRecord], bool]:
    """Give each run of a group that is not cancelled more; as ``extend``, all or none."""

    def ask(renewed: Sequence[int] = ()) -> tuple[Sequence[RunRecord], bool]:
        return store.runs.extend_group(
            group, trials=trials, seconds=seconds, idempotency_key=idempotency_key, renewed=renewed
        )

    try:
        return ask()
    except BudgetUsedUp:
        return ask([run.id for run in of_other_code(store.runs.of_group(group))])


def change_group(
    store: SqlStore, group: str, change: Callable[[str], RunRecord]
) -> Sequence[RunRecord]:
    """Pause, resume, cancel or amend the runs of a group that can be; return all of them.

    Raises:
        UnknownRun: there is no such group (DB809).
    """
    for run in store.runs.of_group(group):
        with suppress(IllegalTransition):  # a finished one is as it should be
            change(run.public_id)
    return store.runs.of_group(group)


def of_other_code(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs of another program or toolchain than there is now."""
    from tuner_service.jobs import is_current  # loads the kernels
    from tuner_service.wiring import host_toolchain

    return [run for run in runs if not is_current(run, host_toolchain())]
