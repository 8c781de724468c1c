"""``tilecore recommend`` and ``tune path/program.py:function``: a program of the user's."""

from __future__ import annotations

import json
import runpy
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from recommender.portable_tracing import portable
from tilecore.advice import question_of
from tilecore.autotuner import AutoTuneImpl
from tilecore.compat.modules import aliased
from tilecore.errors import (
    InvalidProblem,
    SourceSpan,
    TileError,
    did_you_mean,
    program_error,
)
from tilecore.jit import JITImpl
from tilecore.recommending import OpenProgram, ProgramAdvice
from tuner_service import wiring
from tuner_service.advice import advise_for, device_of, known_to
from tuner_service.cli import commands
from tuner_service.cli.library_by_service import follow, limits
from tuner_service.cli.program_arguments import FORM
from tuner_service.client import ServiceClient
from tuner_service.errors import InvalidProgramFile
from tuner_service.jobs import Effort
from tuner_service.questions import together, understand_sent
from tuner_service.settings import Settings

out = Console()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a command line says of a program.

    Attributes:
        program: path/program.py:function.
        given: arguments, which stay as they are.
        fixed, space: knobs with a value, and with values to choose from.
        sizes: values of sizes that the program finds out at its call, for a service or a run.
        threads: cores to use; 0: all.
        hardware: the device; None: this host, or the service's.
        service: address of the service that is to answer; None: this installation.
    """

    program: str
    given: Mapping[str, Any]
    fixed: Sequence[str] = ()
    space: Sequence[str] = ()
    sizes: Sequence[str] = ()
    threads: int = 0
    hardware: str | None = None
    service: str | None = None

    def question(self, function: Any, **more: Any) -> OpenProgram:
        """Return what is asked of a recommender."""
        return question_of(
            function, (), spelled(function, self.given) | _assigned("--fixed", self.fixed),
            target=self.hardware, cores=self.threads, service=self.service,
            problem=_assigned("--size", self.sizes),
            space=spaces(self.space), **more,
        )  # fmt: skip


def recommend(settings: Settings, asked: Asked, *, top_k: int, as_json: bool) -> None:
    """Print ranked configs of a program."""
    with loaded(asked.program) as function:
        if asked.service is not None:
            with ServiceClient(asked.service, settings.key) as client:
                advice = client.recommend(asked.question(function, top_k=top_k))
        else:
            with wiring.store_to_answer(settings) as store:
                device, asked_for = device_of(store, asked.hardware)
                question = asked.question(function, top_k=top_k)
                advice = advise_for(question, device, asked_for, known_to(store, device))
    if as_json:
        out.print_json(json.dumps(to_wire(advice)))
    else:
        show(out, asked.program, advice)


def tune(settings: Settings, asked: Asked, effort: Effort, *, force: bool) -> None:
    """Tune a program for this machine or a device, or by a service, and show what was found.

    Raises:
        RunFailed: the run ended without a result (SV911).
    """
    if asked.service is not None:
        _tune_there(settings, asked, effort)
        return
    store = wiring.open_store(settings)
    with loaded(asked.program) as function:
        question = asked.question(function)
        device, asked_for = device_of(store, asked.hardware)
        program = portable(question, device)
    record, _ = store.programs.add(program.digest, program.name, program.to_bytes(), "local")
    known = {**question.sizes, **question.problem}
    problem = {k: known[k] for k in (*program.sizes, *program.call_sizes) if k in known}
    named = None if asked.hardware is None else asked_for or device.name
    commands.tune_asked(
        settings, store,
        lambda: understand_sent(
            store, record.digest, problem, threads=asked.threads, hardware=named
        ),
        effort, force=force,
    )  # fmt: skip


def _tune_there(settings: Settings, asked: Asked, effort: Effort) -> None:
    assert asked.service is not None
    with loaded(asked.program) as function, ServiceClient(asked.service, settings.key) as client:
        follow(client, client.tune(asked.question(function), limits(effort)))


def parse_given(options: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return arguments from options (those of library kernels, too) and ``NAME=VALUE`` texts.

    Raises:
        InvalidProblem: an assignment without a value, or a name that comes twice (TC502).
    """
    return together(options, "--set", _assigned("--set", assignments))


def spaces(assignments: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values to choose from that ``KNOB=A,B`` texts name.

    Raises:
        InvalidProblem: one without values (TC502).
    """
    return {k: _listed(v) for k, v in _texts("--space", assignments).items()}


@contextmanager
def loaded(program: str) -> Iterator[Any]:
    """Import a program's file, ``import tilelang`` meaning tilecore, and give its function.

    Raises:
        InvalidProgramFile: no such file or function (SV913).
        TileError: what the file's own Python raises.
    """
    text, separator, name = program.rpartition(":")
    path = Path(text if separator else program)
    if not path.is_file():
        raise InvalidProgramFile(program=program, expected=FORM, found="no such file")
    before = list(sys.path)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        with aliased():
            names = _run(path)
            known = [n for n, v in names.items() if isinstance(v, (JITImpl, AutoTuneImpl))]
            if not separator:
                hint = f"it has {', '.join(f'{path}:{n}' for n in known)}" if known else ""
                raise InvalidProgramFile(
                    program=program, expected=FORM, found="no function", hint=hint
                )
            if name not in names:
                expected = f"one of {', '.join(known)}" if known else f"a function {name}"
                raise InvalidProgramFile(
                    program=str(path), expected=expected,
                    found=name if known else "none of that name, and none under @tilelang.jit",
                    hint=did_you_mean(name, known or [n for n, v in names.items() if callable(v)]),
                )  # fmt: skip
            yield names[name]
    finally:
        sys.path[:] = before


def _run(path: Path) -> dict[str, Any]:
    try:
        return runpy.run_path(str(path), run_name=path.stem)
    except TileError:
        raise
    except SystemExit as end:
        raise InvalidProgramFile(
            program=str(path),
            expected="a file that can be imported",
            found=f"exit({end.code})",
            hint='what is to run as a script goes under `if __name__ == "__main__":`',
        ) from end
    except SyntaxError as error:
        span = SourceSpan(str(path), error.lineno or _line_of_null(path))
        raise program_error(error, span) from error
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        line = frames[-1].lineno if frames else 0
        raise program_error(error, SourceSpan(str(path), line or 0)) from error


def _line_of_null(path: Path) -> int:
    """Return the line of a file's first null byte, of which Python does not say where it is."""
    before, null, _ = path.read_bytes().partition(b"\0")
    return before.count(b"\n") + 1 if null else 1


def spelled(function: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments under the names of the program: ``--m`` is its M where it has no m.

    Raises:
        InvalidProblem: one is given under both names (TC502).
    """
    own = function.impl if isinstance(function, AutoTuneImpl) else function
    code = getattr(getattr(own, "wrapped", own), "__code__", None)
    names = () if code is None else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found: dict[str, Any] = {}
    for name, value in given.items():
        own_name = name.upper() if name in ("m", "n", "k") and name not in names else name
        if own_name in found or (own_name != name and own_name in given):
            raise InvalidProblem(field=own_name, expected="one value", found="two spellings")
        found[own_name] = value
    return found


def _texts(option: str, assignments: Sequence[str]) -> dict[str, str]:
    found = {}
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        if not separator or not name or not text:
            raise InvalidProblem(field=option, expected="NAME=VALUE", found=repr(assignment))
        if name in found:
            raise InvalidProblem(field=f"{option} {name}", expected="one value", found="several")
        found[name] = text
    return found


def _assigned(option: str, assignments: Sequence[str]) -> dict[str, Any]:
    return {name: _value(text) for name, text in _texts(option, assignments).items()}


def _listed(text: str) -> list[Any]:
    return [_value(part) for part in text.split(",") if part]


def _value(text: str) -> Any:
    flags = {"true": True, "false": False, "none": None}
    if text.lower() in flags:
        return flags[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def to_wire(advice: ProgramAdvice) -> dict[str, Any]:
    """Return an answer as JSON."""
    ranked = [
        {
            "rank": rank, "config": dict(r.config), "lowering": dict(r.lowering),
            "latency_us": r.time_s * 1e6, "interval_us": [s * 1e6 for s in r.interval_s],
            "gflops": advice.work_flop / r.time_s / 1e9, "source": r.source,
            "bound_by": r.bound_by, "rationale": r.rationale,
        }
        for rank, r in enumerate(advice, 1)
    ]  # fmt: skip
    return {
        "hardware": advice.hardware, "legal": advice.legal, "enumerated": advice.enumerated,
        "traces": advice.traces, "notes": list(advice.notes), "recommendations": ranked,
    }  # fmt: skip


def show(console: Console, program: str, advice: ProgramAdvice) -> None:
    """Print an answer."""
    console.print(f"{program} on {advice.hardware}", highlight=False, soft_wrap=True)
    table = Table()
    for title in ("#", "µs", "80 % interval", "GFLOP/s"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("source")
    table.add_column("bound by")
    for rank, r in enumerate(advice, 1):
        low_s, high_s = r.interval_s
        table.add_row(
            str(rank), f"{r.time_s * 1e6:,.1f}", f"{low_s * 1e6:,.1f} to {high_s * 1e6:,.1f}",
            f"{advice.work_flop / r.time_s / 1e9:,.1f}", r.source, r.bound_by,
        )  # fmt: skip
    console.print(table)
    for line in str(advice).splitlines():
        console.print(line, highlight=False, soft_wrap=True, markup=False)
