"""``tilecore dispatch``: a dispatch table from what is known, or from a tuning of its shapes.

Tuning takes two steps. Every shape gets a run of its own; then the configs that might serve several
shapes are measured at all of them, interleaved with each shape's best (a *cross-measurement*: a run
without a search). The table rests on the second step alone: its times were taken side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from db.records import RunRecord
from db.store import SqlStore
from recommender.dispatch import Choice, dispatch_table, to_cross_measure
from recommender.dispatch_question import DispatchQuestion
from recommender.dispatch_times import Evidence, Times, known_times
from recommender.measurement import Measurement
from tilecore.dispatch_table import DispatchTable, write_json
from tilecore.target import Target, parse_target
from tilecore.tile_config import TileConfig
from tuner_service import commands, jobs, questions, wiring
from tuner_service.console_dispatch import print_dispatch_table
from tuner_service.dispatch_evidence import LoggedSessions
from tuner_service.dispatch_shapes import AskedTable, understand_table
from tuner_service.errors import ExportFailed, RunFailed
from tuner_service.questions import Question
from tuner_service.settings import Settings

Form = Literal["table", "vllm"]
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

    With a ``service`` it answers, from what it knows (``dispatch_by_service.ask``).
    """
    if service is not None:
        from tuner_service.dispatch_by_service import ask

        table = ask(
            settings, service, asked, choice, trust_predictions=trust_predictions, effort=effort
        )
        kind = "cpu" if isinstance(parse_target(table.target), Target) else "gpu"
    else:
        table, kind = make_table(
            settings, asked, choice, trust_predictions=trust_predictions, effort=effort
        )
    print_dispatch_table(commands.out, table, kind)
    if output is not None:
        try:
            write_json(output, table.as_vllm() if form == "vllm" else table.to_json())
        except OSError as error:
            raise ExportFailed(path=output, reason=error.strerror or str(error)) from error
        commands.out.print(f"written: {output}", soft_wrap=True, highlight=False)


def make_table(
    settings: Settings, asked: AskedTable, choice: Choice, *, trust_predictions: bool = False,
    effort: jobs.Effort | None = None, follow: Follow = commands.follow_group,
) -> tuple[DispatchTable, str]:  # fmt: skip
    """Return a table and the kind of its device; with an ``effort``, its shapes are tuned first."""
    store = wiring.open_store(settings)
    if effort is None:
        question = understand_table(store, asked)
        times = known_times(
            question, store, evidence=LoggedSessions(store, question),
            trust_predictions=trust_predictions,
        )  # fmt: skip
    else:
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
        HardwareNotOffered: no worker has the device (SV906).
        RunFailed: a run failed or was cancelled (SV905).
    """
    question = understand_table(store, asked)
    parts = _parts(store, question, asked.hardware)
    for part in parts:
        jobs.check_offered(store, part, effort)  # complain before profiling
    if parts[0].is_for_host:
        commands.profile_once(store)
        question = understand_table(store, asked)
        parts = _parts(store, question, asked.hardware)
    known = {p.workload.key: commands.known_run(store, p, effort, force=False) for p in parts}
    new = [(p, effort) for p in parts if known[p.workload.key] is None]
    queued = list(jobs.submit_group(store, new)[0]) if new else []
    commands.out.print(f"tuning {len(parts)} shapes, {len(queued)} of them anew")
    runs = [known[p.workload.key] or queued.pop(0) for p in parts]
    _finish(settings, store, runs, follow)
    shared = candidates(question, store)
    crossing = replace(effort, time_limit_s=0.0)
    most = max(len(configs) for configs in shared.values())
    commands.out.print(f"measuring up to {most} configs at each of {len(parts)} shapes")
    group, _ = jobs.submit_group(
        store, [(p, _with_room(crossing, shared[p.workload.key])) for p in parts],
        incumbents=shared,
    )  # fmt: skip
    _finish(settings, store, group, follow)
    return question, known_times(question, store, evidence=_of_runs(store, group))


def candidates(question: DispatchQuestion, store: SqlStore) -> dict[str, Sequence[TileConfig]]:
    """Return, by the workload's key, which configs are to be measured at it."""
    times = known_times(
        question, store, evidence=LoggedSessions(store, question), trust_predictions=True
    )
    chosen = to_cross_measure(times, np.array(question.shapes.weights))
    return {
        question.workload(shape).key: [times.configs[column] for column in columns]
        for shape, columns in zip(question.shapes.shapes, chosen, strict=True)
    }


def _with_room(effort: jobs.Effort, configs: Sequence[TileConfig]) -> jobs.Effort:
    """Return an effort that has a trial for default, recommendation and these configs."""
    return replace(effort, max_trials=max(effort.max_trials, len(configs) + 2))


def _parts(store: SqlStore, question: DispatchQuestion, hardware: str | None) -> list[Question]:
    if question.program is not None:
        return [
            questions.understand_sent(
                store, question.program.digest, question.problem(shape),
                threads=question.threads, hardware=hardware,
            )
            for shape in question.shapes.shapes
        ]  # fmt: skip
    return [
        questions.understand(
            store,
            question.name,
            question.problem(shape),
            threads=question.threads,
            hardware=hardware,
        )
        for shape in question.shapes.shapes
    ]


def _finish(
    settings: Settings, store: SqlStore, runs: Sequence[RunRecord], follow: Follow
) -> None:  # fmt: skip
    if not all(run.is_finished for run in runs):
        follow(settings, store, runs)
    now = [store.runs.get(run.public_id) for run in runs]
    failed = [run for run in now if run.state != "SUCCEEDED"]
    if failed:
        states = ", ".join(f"{run.public_id} {run.state}" for run in failed)
        raise RunFailed(run=states, state=failed[0].state, error=failed[0].error or "")


def _of_runs(store: SqlStore, runs: Sequence[RunRecord]) -> Evidence:
    """Return what certain runs measured, and nothing else, as evidence."""
    found: Mapping[str, Sequence[Measurement]] = {
        run.workload.key: [
            t.measurement for t in store.trials.of_run(run.id) if t.measurement is not None
        ]
        for run in runs
    }
    return lambda workload: found.get(workload.key, ())
