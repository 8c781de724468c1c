"""Runs every TileLang program below a folder, each in a forked child, and tabulates outcomes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from tilecore import __version__
from tilecore.compat.gpu_builds import Builds
from tilecore.compat.runner import (
    FAILED,
    THIS_MACHINE,
    TIMED_OUT,
    Arguments,
    Machine,
    Outcome,
    attempt,
)
from tilecore.compiler import listening

IMPORTS = re.compile(r"^\s*(?:import|from)\s+tilelang\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Surveyed:
    """One program with its outcome; ``wall_s`` includes tracing and compiling."""

    program: str
    arguments: Arguments
    outcome: Outcome
    wall_s: float


class Child:
    """A program that runs in a forked child of this process."""

    def __init__(
        self,
        program: Path,
        arguments: Arguments,
        limit_s: float,
        tests: Sequence[str],
        builds: Builds | None = None,
        machine: Machine = THIS_MACHINE,
        output: Path | None = None,
    ) -> None:
        self.program, self.arguments = program, arguments
        self.limit_s, self.start_s = limit_s, time.monotonic()
        self._answer = tempfile.TemporaryFile("w+")  # noqa: SIM115 - poll() closes it
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            _run(program, arguments, tests, self._answer.fileno(), builds, machine, output)

    def poll(self) -> Outcome | None:
        """Return what became of the program, None while it runs; kill it past its limit."""
        done, status = os.waitpid(self._pid, os.WNOHANG)
        if not done and self.wall_s <= self.limit_s:
            return None
        with self._answer as answer:
            if not done:
                os.killpg(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                return Outcome(TIMED_OUT, f"killed after {self.limit_s:.0f} s")
            answer.seek(0)
            text = answer.read()
        if text:
            return Outcome(**json.loads(text))
        return Outcome(FAILED, f"the process ended with {os.waitstatus_to_exitcode(status)}")

    @property
    def wall_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start_s


def programs(folder: Path, *, every: bool = False) -> list[Path]:
    """Return the Python files below ``folder`` that import tilelang, or all of them, sorted."""
    return [
        path
        for path in sorted(folder.rglob("*.py"))
        if path.name not in ("conftest.py", "__init__.py")
        and (every or IMPORTS.search(path.read_text(errors="replace")))
    ]


def survey(
    paths: Iterable[Path],
    folder: Path,
    limit_s: float,
    *,
    arguments: Mapping[str, Arguments] | None = None,
    jobs: int = 1,
    tests: Sequence[str] = (),
    tell: Callable[[Surveyed], None] = lambda _: None,
    builds: Builds | None = None,
    machine: Machine = THIS_MACHINE,
    outputs: Path | None = None,
) -> list[Surveyed]:
    """Run programs and return what became of them, by name.

    Args:
        paths: the programs.
        folder: names in the result are relative to it.
        limit_s: time after which a program is killed.
        arguments: what programs are started with, by name.
        jobs: how many run at once.
        tests: options of pytest for files of tests.
        tell: called with every outcome as it is known.
        builds: builds for GPUs what the programs compile.
        machine: what the programs see, and what runs them.
        outputs: folder for what the programs print; None: nobody reads it.
    """
    if machine.is_device:  # a process that has opened the driver can no longer fork
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # noqa: TID251  # torch's, not ours
    _preload()
    waiting = deque(paths)
    running: list[Child] = []
    found: list[Surveyed] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            path = waiting.popleft()
            name = path.relative_to(folder).as_posix()
            given = (arguments or {}).get(name, ())
            if builds is not None:
                builds.program = name
            output = None if outputs is None else outputs / f"{name.replace('/', '-')}.txt"
            running.append(Child(path, given, limit_s, tests, builds, machine, output))
        for child in list(running):
            outcome = child.poll()
            if outcome is not None:
                running.remove(child)
                name = child.program.relative_to(folder).as_posix()
                found.append(Surveyed(name, child.arguments, outcome, round(child.wall_s, 1)))
                tell(found[-1])
        time.sleep(0.02)
    return sorted(found, key=lambda s: s.program)


def _run(
    program: Path, arguments: Arguments, tests: Sequence[str], answer: int, builds: Builds | None,
    machine: Machine, output: Path | None,
) -> NoReturn:  # fmt: skip
    os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    said = null if output is None else os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor, place in enumerate((null, said, said)):
        os.dup2(place, descriptor)
    os.chdir(program.parent)
    try:
        with contextlib.nullcontext() if builds is None else listening(builds):
            outcome = attempt(program, arguments, machine, tests)
        os.write(answer, json.dumps(asdict(outcome)).encode())
        sys.stdout.flush()
    finally:
        os._exit(0)


def _preload() -> None:
    """Import what every program needs, once, before forking."""
    import pytest  # noqa: F401
    import torch  # noqa: F401
    import tvm  # noqa: F401

    import tilecore.codegen.llvm
    import tilecore.compiler
    import tilecore.runtime  # noqa: F401


def markdown(found: Sequence[Surveyed], title: str, source: str, target: str = "llvm") -> str:
    """Return the survey as a Markdown document; ``target``: what the programs were compiled for."""
    kinds = Counter(s.outcome.kind for s in found)
    tests: Counter[str] = Counter()
    for one in found:
        tests += Counter({"passes": one.outcome.passed, "is skipped": one.outcome.skipped})
        tests += Counter(one.outcome.failures)
    lines = [
        f"# {title}",
        "",
        f"{source}. tilecore {__version__}, {datetime.now(UTC):%Y-%m-%d}, target {target}; "
        f"{len(found)} programs, made by `python -m tilecore.compat --survey DIR --out FILE`.",
        "",
        "| outcome | programs |",
        "|---|---|",
        *(f"| {kind} | {count} |" for kind, count in kinds.most_common()),
        "",
        "| outcome of single tests, in files of tests | tests |",
        "|---|---|",
        *(f"| {kind} | {count} |" for kind, count in tests.most_common()),
        "",
        "| program | outcome | tests passed/failed/skipped | reason |",
        "|---|---|---|---|",
    ]
    for s in found:
        o = s.outcome
        numbers = (o.passed, o.failed, o.skipped)
        counts = "/".join(map(str, numbers)) if any(numbers) else ""
        reason = o.reason.replace("|", "\\|")
        lines.append(f"| {s.program}{_shown(s.arguments)} | {o.kind} | {counts} | {reason} |")
    return "\n".join(lines) + "\n"


def _shown(arguments: Arguments) -> str:
    if not isinstance(arguments, Mapping):
        return "".join(f" {a}" for a in arguments)
    calls = (
        f"{name}({', '.join(f'{k}={v!r}' for k, v in keywords.items())})"
        for name, keywords in arguments.items()
    )
    return " " + ", ".join(calls)
