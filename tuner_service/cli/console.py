"""What the command line prints: progress and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from db.records import (
    CompactionReport,
    EventRecord,
    KeyRecord,
    MeasurementRecord,
    ModelRecord,
    NodeRecord,
    RunRecord,
)
from recommender.hardware import EMULATED, HardwareProfile
from recommender.workload import digest_of
from tilecore.tile_config import TileConfig
from tuner_service.report import ROLES, doubts_in, work_flop_of

if TYPE_CHECKING:
    from recommender.recommendation import Recommendation

out = Console()
err = Console(stderr=True)
ROLE_TITLES = ("default config", "zero-measurement recommendation", "best found")
KEY_DIGITS = 12  # of the key of a node, where no other begins with them
IDLE_KNOBS = ("num_stages", "threads")  # without effect on a CPU: not worth a column


class RunProgress:
    """A progress bar with the live best; use as a context manager."""

    def __init__(self, console: Console, run: RunRecord) -> None:
        self._phases = {"screen": "screening (1 thread)", "confirm": "confirming"}
        if run.hardware.kind != "cpu":
            self._phases["screen"] = "screening"
        self._work_flop = work_flop_of(run)
        self._best_s: dict[str, float] = {}
        self._done = 0
        self._planned = run.planned_trials
        self._progress = Progress(
            TextColumn("{task.description:<22}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[best]}"),
            console=console,
        )
        self._task = self._progress.add_task("waiting for workers", total=None, best="")

    def __enter__(self) -> RunProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, event: EventRecord) -> None:
        """Take in an event."""
        if event.kind in ("started", "resumed"):
            self._progress.update(self._task, description=f"{event.kind}, compiling")
        if event.kind == "renewed":
            self._done, self._best_s = 0, {}
        if event.kind != "trial":
            return
        self._done += 1
        protocol, time_s = event.payload["protocol"], event.payload["time_s"]
        if time_s is not None:
            self._best_s[protocol] = min(time_s, self._best_s.get(protocol, time_s))
        phase = self._phases[protocol]
        total = max(self._planned, self._done) if protocol == "screen" else None
        self._progress.update(
            self._task,
            description=phase,
            completed=self._done,
            total=total or max(self._planned, self._done),
            best=self._best(protocol),
        )

    def _best(self, protocol: str) -> str:
        time_s = self._best_s.get(protocol)
        if time_s is None:
            return ""
        return f"best {time_s * 1e6:,.0f} µs  {self._work_flop / time_s / 1e9:,.1f} GFLOP/s"


def print_result(
    console: Console, run: RunRecord, by_status: Mapping[str, int], where: str
) -> None:
    """Print the table at the end of a tuning run."""
    title = f"{workload_text(run.workload.kernel, dict(run.workload.problem))}, {run.hardware.name}"
    _print_outcome(console, title, run.result or {}, by_status, run.active_s, run.hardware.kind)
    _say_whose_times(console, run.hardware.name)
    console.print(f"records: run {run.public_id} in {where}", soft_wrap=True)


def print_told_result(console: Console, run: Mapping[str, Any], where: str) -> None:
    """Print the same of a run that a service tells of."""
    workload = run["workload"]
    title = f"{workload_text(workload['kernel'], workload['problem'])}, {run['hardware']}"
    _print_outcome(console, title, run["result"] or {}, run["trials"], run["active_s"], "")
    _say_whose_times(console, run["hardware"])
    console.print(f"records: run {run['id']} at {where}", soft_wrap=True)


def _say_whose_times(console: Console, hardware: str) -> None:
    if hardware.startswith(f"{EMULATED} "):
        console.print("times are the emulator's and say nothing of the device", highlight=False)


def _print_outcome(
    console: Console, title: str, result: Mapping[str, Any], by_status: Mapping[str, int],
    active_s: float, kind: str,
) -> None:  # fmt: skip
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for column in ("median µs", "GFLOP/s", "of peak", "vs torch"):
        table.add_column(column, justify="right", no_wrap=True)
    for role, role_title in zip(ROLES, ROLE_TITLES, strict=True):
        table.add_row(role_title, *_candidate_cells(result.get(role)))
    console.print(table)
    for line in _summary(result, by_status, active_s, kind):
        console.print(line, soft_wrap=True, highlight=False)


def _candidate_cells(shown: Mapping[str, Any] | None) -> list[str]:
    if shown is None:
        return ["not measured", "", "", ""]
    if "latency_us" not in shown:
        return [str(shown["status"]), "", "", ""]
    peak, ratio = shown["fraction_of_peak"], shown["ratio_to_reference"]
    return [
        f"{shown['latency_us']:,.1f}",
        f"{shown['gflops']:,.1f}",
        "?" if peak is None else f"{peak:.1%}",
        "?" if ratio is None else f"{ratio:.2f}x",
    ]


def _summary(
    result: Mapping[str, Any], by_status: Mapping[str, int], active_s: float, kind: str
) -> Iterable[str]:
    for role, title in zip(ROLES, ROLE_TITLES, strict=True):
        if result.get(role) is not None:
            config = result[role]["config"]
            yield f"{title}: {short_config(config, kind)}"
    gain, ratio = result.get("gain_over_default"), result.get("recommendation_ratio")
    if gain is not None:
        yield f"best is {gain:.2f}x as fast as the default config"
    if ratio is not None:
        yield f"the recommendation without any measurement reached {ratio:.2f} of the best"
    titles = dict(zip(ROLES, ROLE_TITLES, strict=True))
    for doubt, roles in doubts_in(result).items():
        yield f"doubtful: {doubt} ({', '.join(titles[role] for role in roles)})"
    counts = ", ".join(f"{count} {status}" for status, count in sorted(by_status.items()))
    yield f"trials: {counts} (of {result.get('space_size', '?')} legal configs)"
    yield f"wall time: {active_s:.1f} s"


def short_config(config: Mapping[str, Any], kind: str = "cpu") -> str:
    """Return a config on one line, on a CPU without the knobs that have no effect there."""
    idle = IDLE_KNOBS if kind == "cpu" else ()
    return " ".join(f"{k}={v}" for k, v in config.items() if k not in idle)


def print_recommendations(
    console: Console, work_flop: float, ranked: Sequence[Recommendation], kind: str = "cpu"
) -> None:
    """Print ranked configs for a kind of device with source, expectation and reason."""
    table = Table()
    for title in ("#", "µs", "80 % interval", "GFLOP/s"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("source")
    table.add_column("bound by")
    for rank, r in enumerate(ranked, 1):
        low_s, high_s = r.interval_s
        table.add_row(
            str(rank),
            _micro(r.time_s),
            f"{_micro(low_s)} to {_micro(high_s)}",
            f"{work_flop / r.time_s / 1e9:,.1f}",
            r.source + (" (stale)" if r.is_stale else ""),
            r.bound_by,
        )
    console.print(table)
    for rank, r in enumerate(ranked, 1):
        console.print(f"{rank}. {short_config(r.config, kind)}", highlight=False, soft_wrap=True)
        console.print(f"   {r.rationale}", highlight=False, soft_wrap=True)


def _micro(time_s: float) -> str:
    """Return microseconds, with a decimal where there are few."""
    return f"{time_s * 1e6:,.{0 if time_s >= 1e-4 else 1}f}"


def print_profile(console: Console, profile: HardwareProfile) -> None:
    """Print what a device can do."""
    table = Table(title=profile.name, show_header=False, title_justify="left")
    rows = {
        "key": profile.key,
        "architecture": profile.arch,
        "cores": str(profile.cores),
        "caches": f"L1d {profile.l1d_bytes >> 10} KiB, L2 {profile.l2_bytes >> 10} KiB per core, "
        f"L3 {profile.l3_bytes >> 20} MiB",
        "peak per core": ", ".join(
            f"{dtype} {rate / 1e9:.1f} GFLOP/s" for dtype, rate in profile.peak_flop_per_s.items()
        )
        or "not measured",
        "memory": f"{profile.bandwidth_bytes_per_s / 1e9:.1f} GB/s all cores, "
        f"{profile.core_bandwidth_bytes_per_s / 1e9:.1f} GB/s one core, "
        f"which reads four rows in turn at {profile.turns_gain:.2f} times the rate of one",
        "parallel launch": f"{profile.launch_s * 1e6:.1f} µs",
        "source": profile.source,
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)


def print_runs(console: Console, runs: Sequence[tuple[RunRecord, Mapping[str, int]]]) -> None:
    """Print a list of runs, two lines each: what people copy stays whole in 80 columns."""
    table = Table()
    table.add_column("run", min_width=36)
    for title in ("state", "best µs", "created, by"):
        table.add_column(title)
    for run, counts in runs:
        best = (run.result or {}).get("best") or {}
        latency = best.get("latency_us")
        by = escape(run.created_by or (f"({run.cause})" if run.cause else ""))
        table.add_row(
            *_run_cells(run, counts),
            "" if latency is None else f"{latency:,.1f}",
            f"{run.created_at:%Y-%m-%d\n%H:%M} {by}",
        )
    _print_rows(console, table, "no tuning run is like that")


def _print_rows(console: Console, table: Table, nothing: str) -> None:
    """Print a table, or a sentence in place of one without rows."""
    console.print(table if table.row_count else nothing)


def _run_cells(run: RunRecord, counts: Mapping[str, int]) -> tuple[str, str]:
    """Return a run's id over its workload, and its state over its trials."""
    workload = workload_text(run.workload.kernel, dict(run.workload.problem))
    return f"{run.public_id}\n{workload}", f"{_state(run)}\n{sum(counts.values())} trials"


def _state(run: RunRecord) -> str:
    """Return the state of a run with what it was asked to do and has not done yet."""
    if not run.is_finished and run.cancel_requested:
        return f"{run.state}\ncancelling"
    if run.state == "RUNNING" and run.pause_requested:
        return f"{run.state}\npausing"
    return run.state


def print_keys(console: Console, keys: Sequence[KeyRecord]) -> None:
    """Print API keys without their secrets."""
    table = Table()
    for title in ("prefix", "name", "role", "made", "expires", "state"):
        table.add_column(title, no_wrap=title == "prefix")
    for key in keys:
        expired = "valid" if key.is_valid else "expired"
        table.add_row(
            key.prefix,
            escape(key.name),
            key.role,
            f"{key.created_at:%Y-%m-%d}",
            "never" if key.expires_at is None else f"{key.expires_at:%Y-%m-%d}",
            expired if key.revoked_at is None else f"revoked {key.revoked_at:%Y-%m-%d}",
        )
    _print_rows(console, table, "there are no API keys")


class GroupProgress:
    """A bar over the trials of many runs; use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<22}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._progress.add_task("waiting for workers", total=None)

    def __enter__(self) -> GroupProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, runs: Sequence[tuple[RunRecord, Mapping[str, int]]]) -> None:
        """Take in where the runs stand."""
        ended = sum(run.is_finished for run, _ in runs)
        done = [
            sum(n for state, n in counts.items() if state.isupper()) for _, counts in runs
        ]  # statuses of measurements are in capitals, states of open trials are not
        planned = [
            d if run.is_finished else max(run.planned_trials, d)
            for (run, _), d in zip(runs, done, strict=True)
        ]
        text = f"{ended} of {len(runs)} runs ended"
        self._progress.update(self._task, description=text, completed=sum(done), total=sum(planned))


def print_group(
    console: Console,
    runs: Sequence[tuple[RunRecord, Mapping[str, int], Mapping[str, Any]]],
) -> None:
    """Print a table of what runs found so far, two lines each as ``print_runs`` does."""
    table = Table()
    table.add_column("run", min_width=36, overflow="fold")
    table.add_column("state", overflow="fold")
    for title in ("best µs\nGFLOP/s", "vs default\nvs torch"):
        table.add_column(title, justify="right", no_wrap=True)
    for run, counts, result in runs:
        best, gain = result.get("best") or {}, result.get("gain_over_default")
        ratio = best.get("ratio_to_reference")
        numbers = [f"{best[key]:,.1f}" if key in best else "" for key in ("latency_us", "gflops")]
        ratios = ["" if x is None else f"{x:.2f}x" for x in (gain, ratio)]
        table.add_row(*_run_cells(run, counts), "\n".join(numbers), "\n".join(ratios))
    console.print(table)


def print_models(console: Console, models: Sequence[ModelRecord]) -> None:
    """Print versions of cost models."""
    table = Table()
    for title in ("id", "kernel", "devices", "state", "origin", "made", "by", "reason"):
        table.add_column(title, no_wrap=title != "reason")
    for m in models:
        made, by = f"{m.created_at:%Y-%m-%d}", escape(m.created_by or "")
        table.add_row(str(m.id), m.kernel, m.family, m.state, m.origin, made, by, m.reason or "")
    _print_rows(console, table, "no cost model is like that")


def print_compaction(console: Console, done: CompactionReport) -> None:
    """Print what a compaction removed."""
    total = sum(done.removed.values())
    by_status = ", ".join(f"{n} {status}" for status, n in sorted(done.removed.items()))
    verb = "would be removed" if done.is_dry_run else "removed"
    listed = f" ({by_status})" if by_status else ""
    console.print(
        f"{total} of {done.measurements} measurements {verb}{listed}, {done.events} events",
        soft_wrap=True, highlight=False,
    )  # fmt: skip
    if not done.is_dry_run:
        before, after = done.bytes_before / 2**20, done.bytes_after / 2**20
        console.print(f"{before:.1f} MiB before, {after:.1f} MiB after", highlight=False)
    if done.note:
        console.print(done.note, soft_wrap=True, highlight=False)


def print_nodes(console: Console, nodes: Sequence[NodeRecord], *, in_full: bool = False) -> None:
    """Print machines of the cluster: how their keys begin, or whole keys."""
    digits = KEY_DIGITS
    while not in_full and len({node.key[:digits] for node in nodes}) < len(nodes):
        digits += 1
    table = Table()
    for title in ("node", "name", "state", "hardware", "devices", "seen", "detail"):
        table.add_column(title, overflow="fold", no_wrap=title == "node" and not in_full)
    for node in nodes:
        seen = f"{node.seen_at:%Y-%m-%d %H:%M:%S}"
        devices, hardware = str(node.devices), node.hardware.name
        key = node.key if in_full else node.key[:digits]
        table.add_row(key, node.name, node.state, hardware, devices, seen, node.detail)
    _print_rows(console, table, "no machine has joined yet")


def print_measurements(console: Console, records: Sequence[MeasurementRecord]) -> None:
    """Print records of the tuning log."""
    table = Table()
    for title in ("id", "workload", "config", "protocol", "status", "µs", "torch µs"):
        table.add_column(title, overflow="fold")
    for record in records:
        m = record.measurement
        table.add_row(
            str(record.id),
            workload_text(m.workload.kernel, dict(m.workload.problem)),
            short_config(TileConfig.of(dict(m.config.items_))),
            m.protocol.value,
            m.status.value,
            "" if m.time_s is None else f"{m.time_s * 1e6:,.1f}",
            "" if m.reference_time_s is None else f"{m.reference_time_s * 1e6:,.1f}",
        )
    _print_rows(console, table, "no measurement in the tuning log is like that")


def workload_text(kernel: str, problem: Mapping[str, Any]) -> str:
    """Return a workload in a few words: gemm 1024x1024x512 float32."""
    digest = digest_of(kernel)
    if digest is not None:
        return f"program {digest[:12]} {' '.join(f'{k}={v}' for k, v in problem.items())}"
    shape = "x".join(str(problem[d]) for d in ("m", "n", "k") if d in problem)
    if not shape:  # a user's program: problem holds its inputs
        return f"{kernel} {', '.join(map(str, problem.values()))}"
    return f"{kernel} {shape} {problem.get('dtype', '')}".strip()
