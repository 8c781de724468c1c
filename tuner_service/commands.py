"""What the commands of the command line do; ``cli`` only declares them (so that help is fast)."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from db.log import Form
from db.migrate import open_database, upgrade
from db.records import MeasurementQuery
from db.session import Database
from db.store import SqlStore
from tuner_service import console as show
from tuner_service import jobs, wiring
from tuner_service.errors import ExportFailed, RunFailed
from tuner_service.hardware import find_hardware
from tuner_service.settings import Settings
from tuner_service.watch import CoordinatorProcess, follow, is_led

out = Console()
err = Console(stderr=True)


def tune(
    settings: Settings,
    kernel: str,
    problem: Mapping[str, Any],
    *,
    threads: int,
    max_trials: int,
    time_limit_s: float,
    seed: int,
    force: bool,
) -> None:
    """Answer from the database, or run (or resume) a tuning run and show what it found."""
    store = wiring.open_store(settings)
    jobs.understand(store, kernel, problem, threads=threads)  # complain before profiling
    if not wiring.is_measured(wiring.host_profile(store)):
        err.print("measuring this machine's peaks (once) ...")
        wiring.measure_profile(store)
    question = jobs.understand(store, kernel, problem, threads=threads)
    known = None if force else jobs.latest_run(store, question, ("SUCCEEDED",))
    if known is not None and known.spec["max_trials"] >= max_trials:
        out.print("answered from the database (--force tunes again)")
        _print_run(store, known.public_id)
        return
    run = jobs.latest_run(store, question, jobs.OPEN_STATES)
    if run is not None:
        out.print(f"resuming run {run.public_id}")
    else:
        run, _ = jobs.submit(
            store, question, max_trials=max_trials, time_limit_s=time_limit_s, seed=seed
        )
    coordinator = CoordinatorProcess(settings, until_idle=True)
    try:
        with show.RunProgress(out, run) as progress:
            for event in follow(store, run, coordinator):
                if event is not None:
                    progress.show(event)
    except KeyboardInterrupt:
        err.print("stopped; the same command goes on where this one stopped")
        raise
    finally:
        coordinator.stop()
    _print_run(store, run.public_id)


def recommend(
    settings: Settings,
    kernel: str,
    problem: Mapping[str, Any],
    *,
    threads: int,
    hardware: str | None,
    top_k: int,
    as_json: bool,
) -> None:
    """Print ranked configs."""
    store = wiring.open_store(settings)
    question = jobs.understand(store, kernel, problem, threads=threads, hardware=hardware)
    ranked = jobs.answer(store, question, top_k=top_k)
    if as_json:
        from tuner_service.answers import to_wire

        wire = [to_wire(question, i, r).model_dump() for i, r in enumerate(ranked, 1)]
        out.print_json(json.dumps(wire))
        return
    workload = show.workload_text(kernel, dict(question.workload.problem))
    out.print(f"{workload} on {question.hardware.name}", highlight=False)
    work_flop = question.definition.work_flop(dict(question.workload.problem))
    show.print_recommendations(out, work_flop, ranked, question.hardware.kind)


def replay(
    spaces: Sequence[Path], strategies: Sequence[str], *, trials: int, seeds: int,
    known: Sequence[Path], plot: Path | None,
) -> None:  # fmt: skip
    """Replay searches on recorded spaces and print their curves."""
    from tuner_service import replays

    replays.run(out, spaces, strategies, trials=trials, seeds=seeds, known=known, plot=plot)


def serve(settings: Settings, *, with_coordinator: bool) -> None:
    """Serve REST, with a coordinator as a child process that is started again when it ends."""
    import uvicorn

    from tuner_service.app import create_app
    from tuner_service.coordinator_main import configure_logging

    configure_logging(settings.log_level)
    store = wiring.open_store(settings)
    if settings.needs_key and store.keys.count() == 0:
        err.print("every request needs an API key, and there is none yet: `tilecore keys create`")
    stop = threading.Event()
    child = CoordinatorProcess(settings, until_idle=False)
    if with_coordinator:
        keeper = threading.Thread(target=child.keep_running, args=(store, stop), daemon=True)
        keeper.start()
    try:
        uvicorn.run(
            create_app(settings, store),
            host=settings.host,
            port=settings.port,
            log_level=settings.log_level,
            access_log=False,
            timeout_graceful_shutdown=5,
        )
    finally:
        stop.set()
        child.stop()


def coordinator(settings: Settings, *, until_idle: bool, parent: int | None, check: bool) -> int:
    """Run tuning runs; or, with ``check``, return 0 if a coordinator leads and 1 if none does."""
    from tuner_service.coordinator_main import run_coordinator

    store = wiring.open_store(settings)
    if check:
        return 0 if is_led(store) else 1
    run_coordinator(settings, store, until_idle=until_idle, parent=parent)
    return 0


def profile(settings: Settings, *, if_missing: bool) -> None:
    """Measure this machine, store and print the profile."""
    store = wiring.open_store(settings)
    if if_missing and wiring.is_measured(wiring.host_profile(store)):
        return
    show.print_profile(out, wiring.measure_profile(store))


def runs(settings: Settings, *, state: str | None, limit: int) -> None:
    """Print runs, newest first."""
    store = wiring.open_store(settings)
    found = store.runs.list(state=state, limit=limit)
    show.print_runs(out, [(run, store.trials.count_by_status(run.id)) for run in found])


def measurements(settings: Settings, query: MeasurementQuery, *, limit: int) -> None:
    """Print records of the tuning log."""
    store = wiring.open_store(settings)
    show.print_measurements(out, store.page(query, limit=limit).items)


def log(
    settings: Settings, query: MeasurementQuery, hardware: str | None, *, limit: int,
    export: Path | None,
) -> None:  # fmt: skip
    """Print records of the tuning log, or write all that match into a file."""
    form = None if export is None else _form(export)
    store = wiring.open_store(settings)
    if hardware is not None:
        query = replace(query, hardware_key=find_hardware(store, hardware).key)
    if export is None or form is None:
        show.print_measurements(out, store.page(query, limit=limit).items)
        return
    pieces = store.log.export(query, form)
    partial = export.with_name(f".{export.name}.partial")
    try:
        with partial.open("w", encoding="utf-8", newline="") as file:
            file.writelines(pieces)
        partial.replace(export)
    except OSError as error:
        raise ExportFailed(path=export, reason=error.strerror or str(error)) from error
    finally:
        partial.unlink(missing_ok=True)
    out.print(f"written: {export}", soft_wrap=True, highlight=False)


def _form(path: Path) -> Form:
    if path.suffix == ".csv":
        return "csv"
    if path.name.endswith(".t4.json"):
        return "t4"
    raise ExportFailed(path=path, reason="expected a name that ends in .csv or .t4.json")


def create_key(settings: Settings, name: str, role: str, *, expires_in_days: int | None) -> None:
    """Make an API key and print it alone on a line, for scripts to keep."""
    expires_at = None
    if expires_in_days is not None:
        expires_at = datetime.now(UTC) + timedelta(days=expires_in_days)
    _, secret = wiring.open_store(settings).keys.create(name, role, expires_at=expires_at)
    out.print(secret, soft_wrap=True, highlight=False)
    err.print("send it as `Authorization: Bearer KEY`; it cannot be shown again")


def list_keys(settings: Settings) -> None:
    """Print the API keys, oldest first."""
    show.print_keys(out, wiring.open_store(settings).keys.list(), datetime.now(UTC))


def revoke_key(settings: Settings, prefix: str) -> None:
    """Refuse an API key from now on."""
    record = wiring.open_store(settings).keys.revoke(prefix)
    out.print(f"{record.prefix} ({record.name}) is refused from now on", highlight=False)


def migrate(settings: Settings) -> None:
    """Bring the database to the schema of this version."""
    database = Database(settings.url, busy_timeout_s=settings.database_timeout_s)
    if database.path is not None:
        database = open_database(settings.url, busy_timeout_s=settings.database_timeout_s)
    before = upgrade(database)
    out.print(f"{database.shown_url}: schema is current (was {before or 'empty'})", soft_wrap=True)


def parse_problem(given: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a problem from options and ``FIELD=VALUE`` texts.

    Raises:
        InvalidProblem: an assignment without a value (TC502).
    """
    problem = {name: value for name, value in given.items() if value is not None}
    problem |= jobs.assigned("--set", assignments)
    return problem


def _print_run(store: SqlStore, public_id: str) -> None:
    run = store.runs.get(public_id)
    if run.state != "SUCCEEDED":
        raise RunFailed(run=public_id, state=run.state, error=run.error or "")
    where = store.database.shown_url
    show.print_result(out, run, store.trials.count_by_status(run.id), where)
