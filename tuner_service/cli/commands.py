"""What commands do that tune, recommend and serve; ``cli`` only declares them (help is fast).

What only shows or changes what the database has is in ``record_commands``.
"""

from __future__ import annotations

import gc
import json
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from db.records import RunRecord
from db.store import SqlStore
from recommender.hardware import assumption
from tuner_service import jobs, questions, wiring
from tuner_service.cli import console as show
from tuner_service.cli import record_commands
from tuner_service.cli.console import err, out
from tuner_service.cli.workload_file import Entry, read_workloads
from tuner_service.doubts import remeasurement
from tuner_service.errors import CannotListen, RunFailed
from tuner_service.settings import Settings

if TYPE_CHECKING:
    from tuner_service.watch import CoordinatorProcess

# Answers from memory wait for the interpreter lock of those that are worked out: 5 ms by default.
SWITCH_INTERVAL_S = 0.0005


def tune(
    settings: Settings,
    kernel: str,
    problem: Mapping[str, Any],
    effort: jobs.Effort,
    *,
    threads: int,
    force: bool,
    target: str | None = None,
) -> None:
    """Answer from the database, or run (or resume) a tuning run and show what it found."""
    store = wiring.open_store(settings)
    tune_asked(
        settings, store,
        lambda: questions.understand(store, kernel, problem, threads=threads, hardware=target),
        effort, force=force,
    )  # fmt: skip


def tune_asked(
    settings: Settings,
    store: SqlStore,
    understand: Callable[[], questions.Question],
    effort: jobs.Effort,
    *,
    force: bool,
) -> None:
    """Do what ``tune`` does for whatever ``understand`` makes of the command line."""
    question = understand()
    jobs.check_offered(store, question, effort)  # complain before profiling
    if question.is_for_host:
        profile_once(store)
        question = understand()
    known = jobs.known_run(store, question, effort, force=force)
    if known is not None and known.is_finished:
        out.print("answered from the database (--force tunes again)")
        _print_run(store, known.public_id)
        return
    if known is not None:
        out.print(f"resuming run {known.public_id}")
    run = known or jobs.submit(store, question, effort)[0]
    from tuner_service.watch import CoordinatorProcess, follow

    coordinator = CoordinatorProcess(settings, until_idle=True, tell=_warn)
    with _stopped_at_the_end(coordinator), show.RunProgress(out, run) as progress:
        for event in follow(store, run, coordinator):
            if event is not None:
                progress.show(event)
    _print_run(store, run.public_id)


def tune_file(
    settings: Settings, path: Path, effort: jobs.Effort, *, force: bool, target: str | None = None
) -> None:
    """Tune all workloads of a file that are not known yet, and show what was found for each."""
    store = wiring.open_store(settings)

    def understand(entry: Entry) -> questions.Question:
        question = questions.understand(
            store, entry.kernel, entry.problem, threads=entry.threads, hardware=target
        )
        jobs.check_offered(store, question, effort)
        return question

    first = read_workloads(path, understand)  # complain before profiling
    if first[0].is_for_host:
        profile_once(store)
    asked = {q.workload.key: q for q in read_workloads(path, understand)}
    known = {k: jobs.known_run(store, q, effort, force=force) for k, q in asked.items()}
    new = [(asked[key], effort) for key, run in known.items() if run is None]
    queued = list(jobs.submit_group(store, new)[0]) if new else []
    group = f" as group {queued[0].group}" if queued else ""
    out.print(f"{len(asked)} workloads, {len(queued)} queued{group}", soft_wrap=True)
    runs = [run or queued.pop(0) for run in known.values()]
    follow_group(settings, store, runs)
    record_commands.print_group(store, runs)


def follow_group(settings: Settings, store: SqlStore, runs: Sequence[RunRecord]) -> None:
    """Show how runs go on until they have ended or are held; a coordinator works meanwhile."""
    from tuner_service.watch import CoordinatorProcess, follow_all

    coordinator = CoordinatorProcess(settings, until_idle=True, tell=_warn)
    with _stopped_at_the_end(coordinator), show.GroupProgress(out) as progress:
        for now in follow_all(store, runs, coordinator):
            progress.show([(run, store.trials.count_by_status(run.id)) for run in now])


def _warn(text: str) -> None:
    err.print(text, soft_wrap=True, highlight=False, markup=False)


def profile_once(store: SqlStore) -> None:
    """Measure this machine's rates if that was never done."""
    if not wiring.is_measured(wiring.host_profile(store)):
        err.print("measuring this machine's peaks (once) ...")
        wiring.measure_profile(store)


@contextmanager
def _stopped_at_the_end(coordinator: CoordinatorProcess) -> Iterator[None]:
    """Stop a coordinator when what follows it ends; who interrupts twice does not wait for that."""
    try:
        yield
    except KeyboardInterrupt:
        again = threading.Event()  # an interrupt amid a line would have it printed twice
        signal.signal(signal.SIGINT, lambda *_: again.set())
        err.print("stopping the workers (Ctrl-C again: they end by themselves)")
        coordinator.stop(unless=again.is_set)
        err.print("stopped; the same command goes on where this one stopped")
        raise
    except BaseException:
        coordinator.stop()
        raise
    coordinator.stop()


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
    with wiring.store_to_answer(settings) as store:
        question = questions.understand(store, kernel, problem, threads=threads, hardware=hardware)
        ranked, evidence = questions.ranked_with_evidence(store, question, top_k=top_k)
        again = remeasurement(store, settings, question, evidence)
    if as_json:
        from tuner_service.answers.answering import to_wire

        wire = [to_wire(question, i, r).model_dump() for i, r in enumerate(ranked, 1)]
        out.print_json(json.dumps(wire))
        return
    workload = show.workload_text(kernel, dict(question.workload.problem))
    out.print(f"{workload} on {question.hardware.name}", highlight=False)
    work_flop = question.work_flop
    show.print_recommendations(out, work_flop, ranked, question.hardware.kind)
    note = assumption(question.hardware)
    if note:
        out.print(note, highlight=False, soft_wrap=True)
    if again is not None:
        out.print(f"measured before, but: {'; '.join(again.reasons)}", soft_wrap=True)
        out.print(f"to be measured again: {again.state} ({again.detail})", soft_wrap=True)


def replay(
    spaces: Sequence[Path], strategies: Sequence[str], *, trials: int, seeds: int,
    known: Sequence[Path], plot: Path | None,
) -> None:  # fmt: skip
    """Replay searches on recorded spaces and print their curves."""
    from tuner_service.cli import replays

    replays.run(out, spaces, strategies, trials=trials, seeds=seeds, known=known, plot=plot)


def parse_problem(given: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a problem from options and ``FIELD=VALUE`` texts.

    Raises:
        InvalidProblem: an assignment without a value, or a field that comes twice (TC502).
    """
    return questions.together(given, "--set", questions.assigned("--set", assignments))


def serve(settings: Settings, *, with_coordinator: bool) -> None:
    """Serve REST, with a coordinator as a child process that is started again when it ends.

    Raises:
        CannotListen: the address is not this machine's, or taken (SV933).
    """
    import structlog

    from tuner_service.app import create_app
    from tuner_service.log_lines import ends_logged, log_everything
    from tuner_service.watch import CoordinatorProcess
    from tuner_service.web.server import leave_threads
    from tuner_service.web.server import serve as serve_app

    _try_to_listen(settings.host, settings.port)
    log_everything(settings.log_level)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with ends_logged():
        store = wiring.open_store(settings)
        if settings.needs_key and store.keys.count() == 0:
            structlog.get_logger().warning(
                "every request needs an API key, and there is none yet: `tilecore keys create`"
            )
        stop = threading.Event()
        child = CoordinatorProcess(settings, until_idle=False)
        if with_coordinator:
            keeper = threading.Thread(target=child.keep_running, args=(store, stop), daemon=True)
            keeper.start()
        app = create_app(settings, store)
        gc.collect()
        gc.freeze()  # a full collection takes tens of milliseconds of somebody's answer
        try:
            serve_app(app, settings)
        finally:
            stop.set()
            child.stop()
    leave_threads()


def _try_to_listen(host: str, port: int) -> None:
    """Complain of an address that cannot be had, before anything is started (SV933)."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CannotListen(host=host, port=port, reason=reason) from error


def _print_run(store: SqlStore, public_id: str) -> None:
    run = store.runs.get(public_id)
    if run.state != "SUCCEEDED":
        raise RunFailed(run=public_id, state=run.state, error=run.error or "")
    where = store.database.shown_url
    show.print_result(out, run, store.trials.count_by_status(run.id), where)
