"""Runs every TileLang program below a folder, each in a forked child, and tabulates outcomes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from tilecore import __version__
from tilecore.compat.runner import FAILED, TIMED_OUT, Outcome, attempt

IMPORTS = re.compile(r"^\s*(?:import|from)\s+tilelang\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Surveyed:
    """One program with its outcome; ``wall_s`` includes tracing and compiling."""

    program: str
    outcome: Outcome
    wall_s: float


def programs(folder: Path) -> list[Path]:
    """Return the Python files below ``folder`` that import tilelang, sorted."""
    return [
        path
        for path in sorted(folder.rglob("*.py"))
        if path.name not in ("conftest.py", "__init__.py")
        and IMPORTS.search(path.read_text(errors="replace"))
    ]


def survey(
    paths: Iterable[Path],
    folder: Path,
    limit_s: float,
    tell: Callable[[Surveyed], None] = lambda _: None,
) -> list[Surveyed]:
    """Run programs one after the other.

    Args:
        paths: the programs.
        folder: names in the result are relative to it.
        limit_s: time after which a program is killed.
        tell: called with every outcome as it is known.
    """
    _preload()
    found = []
    for path in paths:
        start = time.monotonic()
        outcome = in_child(path, limit_s)
        name = path.relative_to(folder).as_posix()
        found.append(Surveyed(name, outcome, round(time.monotonic() - start, 1)))
        tell(found[-1])
    return found


def in_child(program: Path, limit_s: float) -> Outcome:
    """Return what became of a program that ran in a forked child of this process."""
    with tempfile.TemporaryFile("w+") as answer:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _child(program, answer.fileno())
        deadline = time.monotonic() + limit_s
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            if time.monotonic() > deadline:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return Outcome(TIMED_OUT, f"killed after {limit_s:.0f} s")
            time.sleep(0.02)
        answer.seek(0)
        text = answer.read()
    if text:
        return Outcome(**json.loads(text))
    code = os.waitstatus_to_exitcode(status)
    return Outcome(FAILED, f"the process ended with {code}")


def _child(program: Path, answer: int) -> None:
    os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.chdir(program.parent)
    try:
        outcome = attempt(program)
        os.write(answer, json.dumps(asdict(outcome)).encode())
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


def markdown(found: Sequence[Surveyed], title: str, source: str) -> str:
    """Return the survey as a Markdown document."""
    kinds = Counter(s.outcome.kind for s in found)
    lines = [
        f"# {title}",
        "",
        f"{source}. tilecore {__version__}, {datetime.now(UTC):%Y-%m-%d}, target llvm; "
        f"{len(found)} programs, made by `python -m tilecore.compat --survey DIR --out FILE`.",
        "",
        "| outcome | programs |",
        "|---|---|",
        *(f"| {kind} | {count} |" for kind, count in kinds.most_common()),
        "",
        "| program | outcome | tests passed/failed/skipped | reason |",
        "|---|---|---|---|",
    ]
    for s in found:
        o = s.outcome
        tests = f"{o.passed}/{o.failed}/{o.skipped}" if o.passed or o.failed or o.skipped else ""
        reason = o.reason.replace("|", "\\|")
        lines.append(f"| {s.program} | {o.kind} | {tests} | {reason} |")
    return "\n".join(lines) + "\n"
