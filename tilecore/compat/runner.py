"""Runs one program and says what became of it, as a value."""

from __future__ import annotations

import ast
import contextlib
import os
import runpy
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilecore.compat.device import CAPABILITY, cuda_on_cpu
from tilecore.compat.modules import aliased
from tilecore.errors import ProgramError, TileError
from tilecore.target import gpu_programs_on_cpu

CHECKED, RAN, WRONG, MISSING_PRIMITIVE, MISSING_PACKAGE, REJECTED, SKIPPED, FAILED, TIMED_OUT = (
    "passes its own check", "runs, checks nothing", "its own check fails", "needs a primitive",
    "needs a package", "rejected by tilecore", "all its tests are skipped", "fails otherwise",
    "out of time",
)  # fmt: skip
READS_CODE = "reads the code of another compiler"
EXPECTS_ERROR = "expects an error of TileLang's"
CODE = ("get_kernel_source", "get_host_source", "kernel_source", "get_source", "inspect_source")
CHECKS = ("assert", "allclose", "assert_close", "torch_assert_close", "assert_allclose")

Arguments = Sequence[str] | Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Machine:
    """What a program sees, and what runs it.

    Attributes:
        sm: compute capability of the GPU that the program is told of.
        emulated: a GPU whose code runs on the emulator; "": the CPU's.
        is_device: it is this machine's GPU, and nothing stands in for it.
    """

    sm: tuple[int, int] = CAPABILITY
    emulated: str = ""
    is_device: bool = False


THIS_MACHINE = Machine()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a program.

    Attributes:
        kind: one of the names above.
        reason: one line: message, primitive or package, and where.
        passed, failed, skipped: tests, for a file of tests.
        failures: how many of its tests failed in which way.
    """

    kind: str
    reason: str = ""
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)


@contextlib.contextmanager
def environment(program: Path, arguments: Sequence[str], machine: Machine) -> Iterator[None]:
    """What a program finds: tilelang, its own folder on the path, its arguments, a CUDA device.

    Where a folder around it holds `examples`, it is on the path too: tests import them from there.
    """
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(program), *arguments]
    around = [str(p) for p in program.parents if (p / "examples").is_dir()]
    sys.path[:0] = [str(program.parent), *around[:1]]
    try:
        with aliased(), contextlib.ExitStack() as stack:
            if not machine.is_device:
                stack.enter_context(cuda_on_cpu(machine.sm))
                stack.enter_context(gpu_programs_on_cpu(machine.emulated))
            yield
    finally:
        sys.argv, sys.path[:] = argv, path


def run(program: Path, arguments: Sequence[str] = (), machine: Machine = THIS_MACHINE) -> None:
    """Run a program as ``python program.py arguments`` would; what it raises is raised."""
    with environment(program, arguments, machine):
        runpy.run_path(str(program), run_name="__main__")


def call(
    program: Path, calls: Mapping[str, Mapping[str, Any]], machine: Machine = THIS_MACHINE
) -> None:
    """Import a program and call functions of it with keywords; what it raises is raised."""
    with environment(program, (), machine):
        names = runpy.run_path(str(program), run_name=program.stem)
        for name, keywords in calls.items():
            names[name](**keywords)


def attempt(
    program: Path,
    arguments: Arguments = (),
    machine: Machine = THIS_MACHINE,
    tests: Sequence[str] = (),
) -> Outcome:
    """Run a program (a file of tests by pytest) and return what became of it.

    Args:
        program: a Python file.
        arguments: of the command line; or functions of the program with their keywords, which
            are called instead.
        machine: what the program sees, and what runs it.
        tests: options of pytest for a file of tests.
    """
    try:
        if program.name.startswith("test_"):
            return _run_tests(program, machine, tests)
        if isinstance(arguments, Mapping):
            call(program, arguments, machine)
        else:
            run(program, arguments, machine)
    except SystemExit as stop:
        if stop.code not in (None, 0):
            return Outcome(FAILED, f"exits with {stop.code}")
    except BaseException as error:  # noqa: BLE001  the border to code that is not ours
        return classify(error, program)
    return Outcome(CHECKED if has_check(program) else RAN)


def has_check(program: Path) -> bool:
    """Return whether the program compares anything: an assert, or a call named like one."""
    for node in ast.walk(ast.parse(program.read_bytes())):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in CHECKS:
                return True
    return False


def classify(error: BaseException, program: Path) -> Outcome:
    """Return the outcome that an exception stands for."""
    line = _place(error, program)
    if isinstance(error, ProgramError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, TileError):
        kind = MISSING_PRIMITIVE if error.code == "TC102" else REJECTED
        return Outcome(kind, f"{error.code} {_first_line(error.message)} {line}")
    if isinstance(error, ModuleNotFoundError):
        return Outcome(MISSING_PACKAGE, f"{error.name or error} {line}")
    if "DID NOT RAISE" in str(error) or str(error).startswith("Regex pattern did not match"):
        return Outcome(EXPECTS_ERROR, f"{_first_line(str(error))} {line}")
    if isinstance(error, AttributeError) and error.name in CODE:
        return Outcome(READS_CODE, f"{_first_line(str(error))} {line}")
    if isinstance(error, AssertionError):
        kind = READS_CODE if _reads_code(error, program) else WRONG
        return Outcome(kind, f"{_first_line(str(error)) or 'assert'} {line}")
    return Outcome(FAILED, f"{type(error).__name__}: {_first_line(str(error))} {line}")


def _place(error: BaseException, program: Path) -> str:
    """Return the last line below the program's folder that was being run."""
    if isinstance(error, TileError) and error.span is not None and error.span.is_known:
        return f"({Path(error.span.file).name}:{error.span.line})"
    here = str(program.parent)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(here)]
    return f"({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""


def _reads_code(error: BaseException, program: Path) -> bool:
    """Return whether a function of the program on the way to ``error`` asks for generated code."""
    here = str(program.parent)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = {n for f in frames if f.f_code.co_filename.startswith(here) for n in f.f_code.co_names}
    return not names.isdisjoint(CODE)


def _first_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[0].strip()[:160] if lines else ""


class _Collector:
    """A pytest plugin that keeps the outcome of each test."""

    def __init__(self, program: Path) -> None:
        self.program = program
        self.passed = self.skipped = 0
        self.failures: list[Outcome] = []

    def pytest_runtest_makereport(self, item: object, call: object) -> None:
        """Note a failure with its exception, while that is still an object."""
        _ = item
        info = getattr(call, "excinfo", None)
        if info is not None and type(info.value).__name__ != "Skipped":
            self.failures.append(classify(info.value, self.program))

    def pytest_runtest_logreport(self, report: object) -> None:
        """Count passes and skips."""
        if getattr(report, "skipped", False):
            self.skipped += 1
        elif getattr(report, "when", "") == "call" and getattr(report, "passed", False):
            self.passed += 1

    def pytest_collectreport(self, report: object) -> None:
        """Note a file that cannot be imported."""
        if getattr(report, "failed", False):
            last = str(getattr(report, "longrepr", "")).strip().splitlines()
            text = next((x[2:].strip() for x in reversed(last) if x.startswith("E ")), "import")
            missing = "No module named" in text or "no counterpart" in text
            self.failures.append(Outcome(MISSING_PACKAGE if missing else FAILED, text[:160]))


def _run_tests(program: Path, machine: Machine, tests: Sequence[str]) -> Outcome:
    import pytest

    found = _Collector(program)
    options = [
        "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:timeout", "--tb=line",
        "--rootdir", str(program.parent), "-c", os.devnull, *tests, str(program),
    ]  # fmt: skip
    with environment(program, (), machine):
        pytest.main(options, plugins=[found])
    kind, reason = (CHECKED, "") if found.passed else (SKIPPED, "")
    if found.failures:
        order = (
            WRONG, FAILED, REJECTED, MISSING_PRIMITIVE, MISSING_PACKAGE, EXPECTS_ERROR, READS_CODE,
        )  # fmt: skip
        worst = min(found.failures, key=lambda o: order.index(o.kind))
        kind, reason = worst.kind, worst.reason
    return Outcome(
        kind, reason, passed=found.passed, failed=len(found.failures), skipped=found.skipped,
        failures=dict(Counter(o.kind for o in found.failures)),
    )  # fmt: skip
