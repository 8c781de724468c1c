"""What commands do with what the database has: runs, nodes, the log, profiles, the schema.

Nothing here loads the kernel library or NumPy where that is not asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from db.errors import DatabaseUnreachable
from db.log import Form
from db.migrate import downgrade, open_database, revision, upgrade
from db.records import MeasurementQuery, RunRecord
from db.session import Database
from db.store import SqlStore
from tilecore.whole_file import written_whole
from tuner_service import wiring
from tuner_service.cli import console as show
from tuner_service.cli.console import out
from tuner_service.errors import ExportFailed, InvalidRequest, RunFailed
from tuner_service.hardware import find_hardware
from tuner_service.report import partial_result
from tuner_service.run_changes import change_group, extend, extend_group, of_other_code
from tuner_service.settings import Settings

Verb = Literal["pause", "resume", "cancel"]


def coordinator(settings: Settings, *, until_idle: bool, parent: int | None, check: bool) -> int:
    """Run tuning runs; or, with ``check``, return 0 if a coordinator leads and 1 if none does."""
    if check:
        from tuner_service.watch import is_led

        leads = is_led(wiring.open_store(settings))
        out.print("a coordinator leads" if leads else "no coordinator leads")
        return 0 if leads else 1
    from tuner_service.coordinator.main import run_coordinator
    from tuner_service.log_lines import ends_logged, log_everything

    log_everything(settings.log_level)
    with ends_logged():
        store = wiring.open_store(settings)
        run_coordinator(settings, store, until_idle=until_idle, parent=parent)
    return 0


def profile(settings: Settings, *, if_missing: bool) -> None:
    """Measure this machine, store and print the profile."""
    store = wiring.open_store(settings)
    if if_missing and wiring.is_measured(wiring.host_profile(store)):
        return
    show.print_profile(out, wiring.measure_profile(store))


def runs(settings: Settings, *, state: str | None, created_by: str | None, limit: int) -> None:
    """Print runs, newest first."""
    store = wiring.open_store_to_read(settings)
    _list(store, store.runs.list(state=state, created_by=created_by, limit=limit))


def measurements(settings: Settings, query: MeasurementQuery, *, limit: int) -> None:
    """Print records of the tuning log."""
    store = wiring.open_store_to_read(settings)
    show.print_measurements(out, store.page(query, limit=limit).items)


def log(
    settings: Settings, query: MeasurementQuery, hardware: str | None, *, limit: int,
    export: Path | None,
) -> None:  # fmt: skip
    """Print records of the tuning log, or write all that match into a file."""
    form = None if export is None else _form(export)
    store = wiring.open_store_to_read(settings)
    if hardware is not None:
        query = replace(query, hardware_key=find_hardware(store, hardware).key)
    if export is None or form is None:
        show.print_measurements(out, store.page(query, limit=limit).items)
        return
    pieces = store.log.export(query, form)
    try:
        with written_whole(export) as partial, partial.open("wb") as file:
            for piece in pieces:
                file.write(piece.encode() if isinstance(piece, str) else piece)
    except OSError as error:
        raise ExportFailed(path=export, reason=error.strerror or str(error)) from error
    out.print(f"written: {export}", soft_wrap=True, highlight=False)


def _form(path: Path) -> Form:
    if path.suffix == ".csv":
        return "csv"
    if path.name.endswith(".t4.json"):
        return "t4"
    if path.suffix == ".parquet":
        return "parquet"
    expected = "expected a name that ends in .csv, .parquet or .t4.json"
    raise ExportFailed(path=path, reason=expected)


def migrate(settings: Settings) -> None:
    """Bring the database to the schema of this version."""
    database = Database(settings.url, busy_timeout_s=settings.database_timeout_s)
    is_there = database.path is None or database.path.exists()
    before = revision(database) if is_there else None
    if database.path is not None:
        database = open_database(settings.url, busy_timeout_s=settings.database_timeout_s)
    upgrade(database)
    out.print(f"{database.shown_url}: schema is current (was {before or 'empty'})", soft_wrap=True)


def migrate_down(settings: Settings, target: str) -> None:
    """Go back to the schema of an earlier version, and say what that means.

    Raises:
        UnknownRevision: there is no such schema (DB834).
    """
    database = Database(settings.url, busy_timeout_s=settings.database_timeout_s)
    if database.path is not None and not database.path.exists():
        raise DatabaseUnreachable(url=database.shown_url, reason="no such file")
    before = downgrade(database, target)
    out.print(
        f"{database.shown_url}: schema is {target} (was {before}); what the version of {target} "
        "knows nothing of is gone. Do not start this version again before that one has ended",
        soft_wrap=True,
    )


def change_run(settings: Settings, run: str, verb: Verb) -> None:
    """Pause, resume or cancel a run, or the runs of a group, and print them."""
    store = wiring.open_store(settings)
    change = {"pause": store.runs.pause, "resume": store.runs.resume, "cancel": store.runs.cancel}
    if run.startswith("g-"):
        _list(store, change_group(store, run, change[verb]))
    else:
        _list(store, [change[verb](run)])


def extend_run(settings: Settings, run: str, *, trials: int, seconds: float) -> None:
    """Give a run, or each run of a group, more trials and seconds and print it."""
    store = wiring.open_store(settings)
    if not trials and not seconds:
        raise InvalidRequest(message="expected --trials, --seconds or both, found neither")
    if run.startswith("g-"):
        extended = extend_group(store, run, trials=trials, seconds=seconds)[0]
    else:
        extended = [extend(store, run, trials=trials, seconds=seconds)[0]]
    _list(store, extended)
    for found in of_other_code([r for r in extended if r.state != "CANCELLED"]):
        out.print(
            f"{found.public_id}: an earlier version of the code measured it; it begins again, with "
            f"all of its {found.planned_trials} trials",
            soft_wrap=True, highlight=False,
        )  # fmt: skip


def amend_run(
    settings: Settings, run: str, *, priority: int | None, ceiling_s: float | None
) -> None:
    """Change the priority or the ceiling of an open run, or of those of a group, and print it."""
    store = wiring.open_store(settings)
    if priority is None and ceiling_s is None:
        raise InvalidRequest(message="expected --priority, --ceiling or both, found neither")
    amend = partial(store.runs.amend, priority=priority, ceiling_s=ceiling_s)
    if run.startswith("g-"):
        _list(store, change_group(store, run, amend))
    else:
        _list(store, [amend(run)])


def show_run(settings: Settings, run: str) -> None:
    """Print what a run, or each run of a group, has found so far."""
    store = wiring.open_store_to_read(settings)
    if run.startswith("g-"):
        print_group(store, store.runs.of_group(run))
        return
    found = store.runs.get(run)
    _list(store, [found])
    partial = replace(found, result=partial_result(store, found))
    counts = store.trials.count_by_status(found.id)
    show.print_result(out, partial, counts, store.database.shown_url)
    if found.error:
        out.print(found.error, soft_wrap=True, highlight=False, markup=False)


def nodes(settings: Settings, *, with_lost: bool, in_full: bool) -> None:
    """Print the machines of the cluster."""
    found = wiring.open_store_to_read(settings).nodes.list(with_lost=with_lost)
    show.print_nodes(out, found, in_full=in_full)


def drain(settings: Settings, node: str, *, back: bool) -> None:
    """Drain a node, or let it work again, and print it."""
    store = wiring.open_store(settings)
    show.print_nodes(out, [store.nodes.undrain(node) if back else store.nodes.drain(node)])


def print_group(store: SqlStore, runs: Sequence[RunRecord]) -> None:
    """Print what the runs of a group have found so far.

    Raises:
        RunFailed: one of them failed, or was cancelled (SV911).
    """
    now = [store.runs.get(run.public_id) for run in runs]
    found = [(r, store.trials.count_by_status(r.id), partial_result(store, r)) for r in now]
    show.print_group(out, found)
    failed = [run for run in now if run.state in ("FAILED", "CANCELLED")]
    if failed:
        states = ", ".join(f"{run.public_id} {run.state}" for run in failed)
        raise RunFailed(run=states, state=failed[0].state, error=failed[0].error or "")


def _list(store: SqlStore, runs: Sequence[RunRecord]) -> None:
    show.print_runs(out, [(run, store.trials.count_by_status(run.id)) for run in runs])
