"""``tilecore dispatch``: a dispatch table from what is known, or from a tuning of its shapes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from db.records import RunRecord
from db.store import SqlStore
from recommender.dispatch.question import DispatchQuestion
from recommender.dispatch.table import Choice, dispatch_table
from recommender.dispatch.times import Times, known_times
from tilecore.dispatch_table import DispatchTable, check_for_vllm, write_json
from tilecore.target import Target, parse_target
from tuner_service import jobs, wiring
from tuner_service.cli import commands
from tuner_service.cli.console import out
from tuner_service.cli.console_dispatch import TuningLines, print_dispatch_table
from tuner_service.dispatch.evidence import LoggedSessions
from tuner_service.dispatch.shapes import AskedTable, understand_table
from tuner_service.dispatch.tuning import TableTuning, Waiting
from tuner_service.errors import ExportFailed, InvalidRequest, RunFailed
from tuner_service.settings import Settings

Form = Literal["table", "vllm"]
PLACE = "name a file in an existing, writable folder: table.json"
Follow = Callable[[Settings, SqlStore, Sequence[RunRecord]], None]


def dispatch(
    settings: Settings,
    asked: AskedTable,
    choice: Choice,
    *,
    trust_predictions: bool = False,
    effort: jobs.Effort | None = None,
    output: Path | None = None,
    form: Form = "table",
    service: str | None = None,
) -> None:
    """Make a table, print it and write it into a file; with an ``effort``, tune its shapes.

    With a ``service`` it answers, and its workers tune (``dispatch_by_service.ask``).
    """
    if form != "table" and output is None:
        raise InvalidRequest(message="expected --output beside --format, found none")
    if output is not None:
        _check_place(output)
        if form == "vllm" and asked.dims:
            check_for_vllm(asked.dims)
    if service is not None:
        from tuner_service.dispatch.by_service import ask

        table = ask(
            settings, service, asked, choice, trust_predictions=trust_predictions, effort=effort,
            watch=TuningLines(out),
        )  # fmt: skip
        kind = "cpu" if isinstance(parse_target(table.target), Target) else "gpu"
    else:
        table, kind = make_table(
            settings, asked, choice, trust_predictions=trust_predictions, effort=effort
        )
    print_dispatch_table(out, table, kind)
    if output is not None:
        try:
            write_json(output, table.as_vllm() if form == "vllm" else table.to_json())
        except OSError as error:
            reason = error.strerror or str(error)
            raise ExportFailed(path=output, reason=reason, hint=PLACE) from error
        out.print(f"written: {output}", soft_wrap=True, highlight=False)


def _check_place(output: Path) -> None:
    """Complain of a place that no file can have, before anything is measured."""
    if output.is_dir():
        raise ExportFailed(path=output, reason="it is a folder", hint=PLACE)
    if not output.absolute().parent.is_dir():
        raise ExportFailed(path=output, reason="its folder does not exist", hint=PLACE)


def make_table(
    settings: Settings, asked: AskedTable, choice: Choice, *, trust_predictions: bool = False,
    effort: jobs.Effort | None = None, follow: Follow = commands.follow_group,
) -> tuple[DispatchTable, str]:  # fmt: skip
    """Return a table and the kind of its device; with an ``effort``, its shapes are tuned first."""
    if effort is None:
        with wiring.store_to_answer(settings) as store:
            question = understand_table(store, asked)
            times = known_times(
                question, store, evidence=LoggedSessions(store, question),
                trust_predictions=trust_predictions,
            )  # fmt: skip
    else:
        store = wiring.open_store(settings)
        question, times = tuned_times(settings, store, asked, effort, follow)
    table = dispatch_table(question, times, choice)
    if asked.program is not None:
        table = asked.program.completed(table)
    return table, question.hardware.kind


def tuned_times(
    settings: Settings,
    store: SqlStore,
    asked: AskedTable,
    effort: jobs.Effort,
    follow: Follow = commands.follow_group,
) -> tuple[DispatchQuestion, Times]:
    """Tune every shape, measure what may serve several at all of them, and return their times.

    ``follow`` returns when runs have ended.

    Raises:
        TileError: what ``TableTuning.advance`` raises.
        RunFailed: a run is held (SV911).
    """
    key = uuid.uuid4().hex
    tuning = TableTuning(store, asked, effort, key)
    for part in tuning.parts:
        jobs.check_offered(store, part, effort)  # complain before profiling
    if tuning.parts[0].is_for_host:
        commands.profile_once(store)
        tuning = TableTuning(store, asked, effort, key)
    while isinstance(now := tuning.advance(), Waiting):
        anew = f", {now.queued} of them anew" if now.stage == "tuning" else ""
        out.print(f"{now.stage} {len(now.runs)} shapes{anew}")
        follow(settings, store, now.runs)
        held = [r for r in (store.runs.get(r.public_id) for r in now.runs) if not r.is_finished]
        if held:
            states = ", ".join(f"{run.public_id} {run.state}" for run in held)
            raise RunFailed(run=states, state=held[0].state, error="it waits to be resumed")
    return now.question, now.times
