"""How gpu_peers.py compares one workload: every participant checked, then timed in turns."""

from __future__ import annotations

import functools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpu_peers_cases as cases
import gpu_peers_torch

Call = Callable[[], Any]
Report = Callable[..., None]
Load = Callable[[Mapping[str, Any]], Callable[..., Any]]
ROUNDS, TRIES, WARM_UP, REPLAYS = 20, 3, 2, 5
CLOSE, FINAL_ROUNDS = 1.08, 7  # how far behind the fastest by a few calls; rounds of these
COLD_BYTES, COLD_WRITES = 256 << 20, 2  # two, so that the host is ahead when a call begins
GRAPH_CALLS, GRAPH_MS = 20, 12.0  # at most so many calls, of about so much time
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 2e-2, torch.float32: 1e-3}


@dataclass(frozen=True, slots=True)
class Entry:
    """One way to compute a workload: a call that writes ``outs`` or returns what it computed."""

    participant: str
    config: str
    call: Call
    expected: Sequence[Any] | None = None  # in place of the workload's

    @property
    def label(self) -> str:
        """Participant and config."""
        return f"{self.participant} {self.config}"


@dataclass(frozen=True, slots=True)
class Work:
    """A workload with its tensors."""

    kernel: str
    problem: Mapping[str, Any]
    inputs: list[Any]
    outs: list[Any]
    expected: list[Any]


class Clock:
    """Times calls on a GPU: by events with cold caches, and by graphs with warm ones."""

    def __init__(self) -> None:
        self._cold = torch.empty(COLD_BYTES, dtype=torch.uint8, device="cuda")

    def ms(self, call: Call) -> float:
        """Return the milliseconds of one call after writes of more than L2 holds."""
        for _ in range(COLD_WRITES):
            self._cold.zero_()
        return _between(call)

    def wait(self) -> None:
        """Wait for what was launched."""
        torch.cuda.synchronize()

    def replays(self, calls: Mapping[str, tuple[Call, float]]) -> dict[str, list[float]]:
        """Return the milliseconds of a call in a row of them, by replays of graphs in turns."""
        graphs: dict[str, tuple[Any, int]] = {}
        for name, (call, guess) in calls.items():
            count = max(3, min(GRAPH_CALLS, int(GRAPH_MS / max(guess, 1e-3))))
            graph = torch.cuda.CUDAGraph()
            try:
                graph.capture_begin(capture_error_mode="relaxed")
                try:
                    for _ in range(count):
                        call()
                finally:
                    graph.capture_end()
                graph.replay()
                torch.cuda.synchronize()
            except Exception as error:  # noqa: BLE001  # some calls cannot be captured
                print(f"  no graph of {name}: {str(error)[:200]}", flush=True)
                continue
            graphs[name] = graph, count
        found: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(REPLAYS):
            for name, (graph, count) in graphs.items():
                graph.replay()
                found[name].append(_between(graph.replay) / count)
        return found


def _between(call: Call) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


class HostClock:
    """Stands in for ``Clock`` where there is no GPU."""

    def ms(self, call: Call) -> float:
        """Return the milliseconds of one call."""
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e3

    def wait(self) -> None:
        """Return at once: calls have run when they return."""

    def replays(self, calls: Mapping[str, tuple[Call, float]]) -> dict[str, list[float]]:
        """Return the milliseconds of a call."""
        return {name: [self.ms(call)] for name, (call, _) in calls.items()}


def compare(
    work: Work, ours: Sequence[Mapping[str, Any]], load: Load, clock: Any, report: Report,
    skipped: Sequence[str],
) -> list[dict[str, Any]]:  # fmt: skip
    """Return a row per candidate; the fastest of each participant timed in turns."""
    rows: list[dict[str, Any]] = []
    right: list[tuple[Entry, dict[str, Any]]] = []
    for source in (_ours(work, ours, load), _triton(work), _tilelang(work), _torch(work)):
        while (entry := _next(source, clock)) is not None:
            if entry.label in skipped:
                rows.append({"participant": entry.participant, "config": entry.config,
                             "error": "left out: stopped or broke an earlier try"})  # fmt: skip
                continue
            report("entry", entry.label)
            try:
                row = _try(entry, work, clock)
            except Exception as error:  # noqa: BLE001  # a participant that fails is a result
                text = f"{type(error).__name__}: {str(error)[:300]}"
                print(f"  {entry.label}: {text}", flush=True)
                rows.append(
                    {"participant": entry.participant, "config": entry.config, "error": text}
                )
                clock.wait()  # raises where the device is no longer usable
                continue
            rows.append(row)
            if not row["is_right"]:
                print(f"  WRONG: {entry.label}: {row['relative_error']:.2e}", flush=True)
                continue
            right.append((entry, row))
    _time(_best(right, clock, report), clock, report, "graphs" not in skipped)
    return rows


def _best(
    right: Sequence[tuple[Entry, dict[str, Any]]], clock: Any, report: Report
) -> dict[str, tuple[float, Entry, dict[str, Any]]]:
    """Return the fastest candidate of each participant: those close to it are timed in turns.

    Clocks change between one candidate's calls and the next one's.
    """
    least: dict[str, float] = {}
    for entry, row in right:
        name = entry.participant
        least[name] = min(row["tried_ms"], least.get(name, math.inf))
    close = [(e, r) for e, r in right if r["tried_ms"] <= CLOSE * least[e.participant]]
    times: list[list[float]] = [[] for _ in close]
    for _ in range(FINAL_ROUNDS):
        for found, (entry, _) in zip(times, close, strict=True):
            report("entry", entry.label)
            found.append(clock.ms(entry.call))
    best: dict[str, tuple[float, Entry, dict[str, Any]]] = {}
    for found, (entry, row) in zip(times, close, strict=True):
        row["final_ms"] = statistics.median(found)
        if entry.participant not in best or row["final_ms"] < best[entry.participant][0]:
            best[entry.participant] = row["final_ms"], entry, row
    return best


def _next(source: Iterator[Entry], clock: Any) -> Entry | None:
    """Return the next way to compute a workload; None at the end, or where making one fails."""
    try:
        return next(source, None)
    except Exception as error:  # noqa: BLE001  # a participant that fails is a result
        print(f"  {type(error).__name__}: {str(error)[:300]}", flush=True)
        clock.wait()
        return None


def _time(
    best: Mapping[str, tuple[float, Entry, dict[str, Any]]], clock: Any, report: Report,
    with_graphs: bool,
) -> None:  # fmt: skip
    """Time the fastest of each participant in turns, by both protocols."""
    times: dict[str, list[float]] = {name: [] for name in best}
    for _ in range(ROUNDS):
        for name, (_, entry, _) in best.items():
            report("entry", entry.label)
            times[name].append(clock.ms(entry.call))
    for name, (_, _, row) in best.items():
        row |= {"is_best": True, "ms": statistics.median(times[name]), "all_ms": times[name]}
    if not with_graphs:
        return
    report("entry", "graphs")
    replayed = clock.replays({name: (entry.call, ms) for name, (ms, entry, _) in best.items()})
    for name, found in replayed.items():
        best[name][2].update(graph_ms=statistics.median(found), all_graph_ms=found)


def _try(entry: Entry, work: Work, clock: Any) -> dict[str, Any]:
    """Check a candidate and time some calls."""
    for out in work.outs:
        out.fill_(float("nan"))
    returned = entry.call()
    clock.wait()
    found = work.outs if returned is None else returned
    found = [found] if isinstance(found, torch.Tensor) else list(found)
    expected = work.expected if entry.expected is None else entry.expected
    errors = []
    for made, wanted in zip(found, expected, strict=True):
        errors.append(float((made.double() - wanted).abs().max() / wanted.abs().max()))
    del returned, found
    for _ in range(WARM_UP):
        entry.call()
    tried = statistics.median(clock.ms(entry.call) for _ in range(TRIES))
    is_right = all(e <= TOLERANCE[o.dtype] for e, o in zip(errors, work.outs, strict=True))
    return {
        "participant": entry.participant, "config": entry.config, "relative_error": max(errors),
        "errors": errors, "is_right": is_right, "tried_ms": tried,
    }  # fmt: skip


def _ours(work: Work, ours: Sequence[Mapping[str, Any]], load: Load) -> Iterator[Entry]:
    """Yield our kernels."""
    arguments = (*work.inputs, *work.outs)
    for made in ours:
        kernel = functools.cache(functools.partial(load, made))  # one that cannot be loaded fails

        def call(kernel: Callable[[], Callable[..., Any]] = kernel) -> None:
            kernel()(*arguments)

        yield Entry(made["participant"], json.dumps(made["config"]), call)


def _triton(work: Work) -> Iterator[Entry]:
    """Yield Triton's kernels."""
    import gpu_peers_triton

    found = gpu_peers_triton.launches(work.kernel, work.problem, work.inputs, work.outs)
    for config, steps in found:

        def call(steps: Sequence[Call] = steps) -> None:
            for step in steps:
                step()

        yield Entry("triton", config, call)


def _torch(work: Work) -> Iterator[Entry]:
    """Yield torch's operators."""
    for found in gpu_peers_torch.peers(work.kernel, work.problem, work.inputs, work.outs):
        yield Entry(*found)


def _tilelang(work: Work) -> Iterator[Entry]:
    """Yield TileLang's examples with configs for Hopper, where it is installed."""
    try:
        import tilelang
    except ImportError:
        return
    from gpu_peers_tilelang import programs

    for config, program in programs(work.kernel, work.problem):
        kernel = tilelang.compile(program, target="cuda")

        def call(kernel: Callable[..., Any] = kernel) -> None:
            kernel(*work.inputs, *work.outs)

        yield Entry("tilelang", config, call)


def prepare(kernel: str, problem: Mapping[str, Any], device: str) -> Work:
    """Return a workload with new inputs."""
    inputs, reference = cases.CASES[kernel]
    given = inputs(problem, device)
    outs = cases.outputs(kernel, problem, given)
    return Work(kernel, problem, given, outs, reference(problem, given))


def label_of(case: Mapping[str, Any]) -> str:
    left_out = ("accum_dtype", "out_dtype")
    kept = {k: v for k, v in case["problem"].items() if k not in left_out and v is not False}
    return f"{case['kernel']} " + " ".join(f"{k}={v}" for k, v in kept.items())


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    best = {r["participant"]: r for r in rows if r.get("is_best")}
    own = best.get("tilecore")
    shown = []
    for name, row in best.items():
        text = f"{name} {row['ms']:.4f}"
        if "graph_ms" in row:
            text += f"/{row['graph_ms']:.4f}"
        text += f" ms {row.get('flop', 0) / row['ms'] / 1e9:.0f} TF"
        if own is not None and row is not own:
            text += f" = {row['ms'] / own['ms']:.3f}"
            if "graph_ms" in row and "graph_ms" in own:
                text += f"/{row['graph_ms'] / own['graph_ms']:.3f}"
        shown.append(text)
    return "  ".join(shown)
