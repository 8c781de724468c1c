"""``@tilecore.compute`` on a GPU beside torch and torch.compile: right, and how fast, in one run.

    python benchmarks/gpu_computations.py [--out FILE] [--only REGEX] [--compiled REGEX]
        [--limit 120] [--device cuda | cpu | "emulated h200"]

The functions of ``gpu_functions.py``, untuned. Each has a process: it compiles ours and
torch.compile's, all processes at once, and compares both with the function in float64. Then, one
process after the other, ours, eager and compiled are timed in turns by events, a buffer larger than
L2 written before each call. What compiling took is CPU time: ours (torch.compile's). On other
devices than "cuda" sizes are small: to try this file without a GPU.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_children import SPAWN, Child, messages
from gpu_functions import CASES, Case
from gpu_peers_compare import Clock

ROUNDS, WARM_UP = 20, 3
PREPARED, COMPILED = 0.7, 0.4  # of the whole time: the longest that all, and torch.compile, take
TIMING_LIMIT_S = 15.0  # of a function
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 2e-2, torch.float32: 2e-3}
LOCK_LIMIT_S = 20.0


class TooLong(BaseException):
    """A time limit; nobody else catches it."""


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise TooLong where the block takes longer."""

    def stop(*_: Any) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def cpu_s() -> float:
    """Return the CPU seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])


class CpuClock:
    """Times calls by wall time."""

    def ms(self, call: Callable[[], Any]) -> float:
        """Return the milliseconds of one call."""
        start = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - start)


def work(name: str, device: str, compile_limit_s: float, exact: Any, pipe: Connection) -> None:
    """Do what a function's process does; ``exact``: the lock of those that compute in float64."""
    Bench(CASES[name], device, compile_limit_s, exact).work(pipe)


class Bench:
    """One function's process."""

    def __init__(self, case: Case, device: str, compile_limit_s: float, exact: Any) -> None:
        self.case, self.device, self.compile_limit_s = case, device, compile_limit_s
        self.lock = exact  # float64 takes room: one process at a time
        self.on_gpu = device == "cuda"
        self.args: tuple[Any, ...] = ()
        self.exact: list[Any] = []
        self.calls: dict[str, Callable[[], Any]] = {}

    def work(self, pipe: Connection) -> None:
        """Compile, compare, wait to be asked, time; send what is found."""
        torch.set_grad_enabled(False)
        self.prepare()
        pipe.send(self.ours())
        pipe.send(self.theirs())
        self.exact.clear()
        self.tidy()
        pipe.send({"ready": True})
        if pipe.recv():
            pipe.send(self.timed())

    def prepare(self) -> None:
        """Make the tensors, and what is exact of them."""
        case, place = self.case, "cuda" if self.on_gpu else "cpu"
        random = torch.Generator(place).manual_seed(7)

        def draw(*shape: int, scale: float = 1.0) -> Any:
            made = torch.randn(*shape, device=place, dtype=torch.float32, generator=random)
            return made.mul_(scale).to(case.dtype)

        self.args = case.tensors(draw, *(case.sizes if self.on_gpu else case.small))
        has_lock = self.lock.acquire(timeout=LOCK_LIMIT_S)
        try:
            found = case.function(*(a.double() for a in self.args))
            self.exact = [e.float() for e in _listed(found)]
            del found
            self.tidy()
        finally:
            if has_lock:
                self.lock.release()

    def ours(self) -> dict[str, Any]:
        """Compile ours and compare it; what failed is said."""
        import tilecore

        target = "auto" if self.device in ("cuda", "cpu") else self.device
        computation = tilecore.compute(self.case.function, target=target)
        start = cpu_s()
        try:
            found = computation(*self.args)
            self.wait()
        except Exception as error:  # noqa: BLE001  # a result, too
            return {"ours_error": f"{type(error).__name__}: {str(error)[:600]}"}
        took = cpu_s() - start
        self.calls["ours"] = lambda: computation(*self.args)
        plan = computation.plan(*self.args)
        stages = [
            {"name": s.program.name, "config": dict(s.chosen.config), "us": 1e6 * s.chosen.time_s}
            for s in plan.stages
        ]
        kernels = {"ours_compile_cpu_s": took, "kernels": len(stages), "stages": stages}
        return kernels | self.compared("ours", found)

    def theirs(self) -> dict[str, Any]:
        """Compile with torch, and compare eager and compiled."""
        function = self.case.function
        self.calls["eager"] = lambda: function(*self.args)
        found = self.compared("eager", self.calls["eager"]())
        if self.compile_limit_s <= 0:
            return found
        start = cpu_s()
        try:
            with limit(self.compile_limit_s):
                compiled = torch.compile(function)
                made = compiled(*self.args)
                self.wait()
        except (Exception, TooLong) as error:  # noqa: BLE001
            said = f"{type(error).__name__}: {str(error)[:300]}"
            return found | {"compiled_error": said}
        self.calls["compiled"] = lambda: compiled(*self.args)
        took = {"compiled_compile_cpu_s": cpu_s() - start}
        return found | took | self.compared("compiled", made)

    def compared(self, name: str, found: Any) -> dict[str, Any]:
        """Return how far results are from the exact ones, of their largest element."""
        pairs = list(zip(_listed(found), self.exact, strict=True))
        errors = [
            float((o.float() - e).abs().max() / e.abs().max().clamp_min(1e-30)) for o, e in pairs
        ]
        limits = [TOLERANCE[o.dtype] for o, _ in pairs]
        is_right = all(e <= most for e, most in zip(errors, limits, strict=True))  # NaN is not
        return {f"{name}_error_of_largest": max(errors), f"{name}_is_right": is_right}

    def timed(self) -> dict[str, Any]:
        """Return medians of calls in turns, and what a call costs the host."""
        clock: Any = Clock() if self.on_gpu else CpuClock()
        for call in self.calls.values():
            for _ in range(WARM_UP):
                call()
        times: dict[str, list[float]] = {name: [] for name in self.calls}
        for _ in range(ROUNDS if self.on_gpu else 3):
            for name, call in self.calls.items():
                times[name].append(clock.ms(call))
        host = {}
        for name, call in self.calls.items():
            self.wait()
            start = time.perf_counter()
            for _ in range(ROUNDS):
                call()
            host[name] = 1e6 * (time.perf_counter() - start) / ROUNDS
        self.wait()
        medians = {name: statistics.median(t) for name, t in times.items()}
        return {"ms": medians, "all_ms": times, "host_us": host}

    def wait(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def tidy(self) -> None:
        """Give the device memory that nothing holds to the other processes."""
        if self.on_gpu:
            torch.cuda.empty_cache()


def _listed(found: Any) -> list[Any]:
    return [found] if isinstance(found, torch.Tensor) else list(found)


def run(device: str, only: str, compiled: str, limit_s: float, out: Path | None) -> None:
    """Prepare all functions at once, time one after the other, print and write what is found."""
    start, lock = time.monotonic(), SPAWN.Lock()
    names = [name for name in CASES if re.search(only, name)]
    rows: dict[str, dict[str, Any]] = {name: {"name": name} for name in names}
    children = {}
    for name in names:
        compile_limit_s = COMPILED * limit_s if re.search(compiled, name) else 0.0
        children[name] = Child(name, functools.partial(work, name, device, compile_limit_s, lock))
    ready = prepared(list(children.values()), rows, start + PREPARED * limit_s)
    print(f"[{time.monotonic() - start:5.1f} s] {len(ready)} of {len(names)} prepared", flush=True)
    for name in names:
        child, row = children[name], rows[name]
        if child in ready and time.monotonic() < start + limit_s:
            time_one(child, row)
        code = child.end()
        if code:
            row.setdefault("error", f"process ended with {code}")
        print(line(row), flush=True)
        if out is not None:
            out.write_text(json.dumps({"device": device, "rows": list(rows.values())}) + "\n")
    print(f"[{time.monotonic() - start:5.1f} s] done", flush=True)


def prepared(children: list[Child], rows: dict[str, dict[str, Any]], until: float) -> list[Child]:
    """Hear what all children find until they are ready, or it is time; return those that are."""
    left, ready = list(children), []
    while left and time.monotonic() < until:
        for child, message in messages(left, until):
            if message is None or "ready" in message:
                left.remove(child)
                ready += [child] if message else []
                break
            rows[child.name] |= message
    for child in left:
        rows[child.name].setdefault("error", "not prepared in time")
        child.process.kill()  # the device is for those that are timed
    return ready


def time_one(child: Child, row: dict[str, Any]) -> None:
    """Have a child time its calls."""
    try:
        child.pipe.send(True)
    except OSError:
        return
    for _, message in messages([child], time.monotonic() + TIMING_LIMIT_S):
        row.update(message or {})
        if message is None or "ms" in message:
            return
    row.setdefault("error", "timing took too long")


def line(row: dict[str, Any]) -> str:
    """Return what is printed of a function."""
    said = row.get("ours_error") or row.get("error") or row.get("compiled_error") or ""
    ms, error = row.get("ms", {}), row.get("ours_error_of_largest")
    shown = f"{row['name']:30}"
    if "ours" in ms:
        ratios = (f"{n} {ms[n] / ms['ours']:5.2f}" for n in ("eager", "compiled") if n in ms)
        shown += f" {ms['ours']:8.4f} ms, times ours: {' '.join(ratios)};"
    if error is not None:
        took, other = (row.get(f"{n}_compile_cpu_s", 0.0) for n in ("ours", "compiled"))
        shown += f" {row['kernels']} kernels in {took:.1f} s ({other:.1f} s), error {error:.1e}"
    wrong = [n for n in ("ours", "eager", "compiled") if row.get(f"{n}_is_right") is False]
    shown += f" WRONG: {', '.join(wrong)}" if wrong else ""
    return f"{shown} {said.splitlines()[0] if said else ''}"


def main() -> None:
    """Run the functions asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="")
    parser.add_argument("--compiled", default="", help="which ones torch.compile takes part in")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/inductor"
        os.environ["TRITON_CACHE_DIR"] = f"{folder}/triton"
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # the processes are many already
        os.environ["TILECORE_DATA_DIR"] = f"{folder}/tilecore"  # nothing is known of before
        run(given.device, given.only, given.compiled, given.limit, given.out)


if __name__ == "__main__":
    main()
