"""Faulty programs and the exact message each one gets.

``faulty/*.test`` holds cases in the form of mypy's: a line ``[case what is wrong]``, the program,
a line ``[out]``, the message (its target: "this CPU"). A program is compiled, or run where it
defines ``run``. Messages are rewritten by ``pytest --update-snapshots``; read what changed.
"""

from __future__ import annotations

import re
import runpy
from dataclasses import dataclass
from pathlib import Path

import pytest

import tilecore as tilelang
import tilecore.language as T
from tilecore.errors import TileError
from tilecore.target import cpu_target

FOLDER = Path(__file__).parent / "faulty"
NAMES = {"tilelang": tilelang, "T": T}


@dataclass
class Case:
    file: Path
    title: str
    program: str
    message: str


def parse(file: Path) -> list[Case]:
    parts = re.split(r"^\[case (.*)\]\n", file.read_text(), flags=re.MULTILINE)[1:]
    cases = []
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        program, _, message = text.partition("[out]\n")
        cases.append(Case(file, title, program.rstrip() + "\n", message.strip("\n")))
    return cases


CASES = [case for file in sorted(FOLDER.glob("*.test")) for case in parse(file)]


def message_of(program: Path) -> str:
    """Return what a user is told; anything but a TileError is raised."""
    try:
        names = runpy.run_path(str(program), NAMES)
        if "run" in names:
            names["run"]()
        elif "main" in names:
            tilelang.compile(names["main"])
    except TileError as error:
        text = str(error).replace(str(program.parent) + "/", "")
        return text.replace(str(cpu_target()), "this CPU")
    return "no error"


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.file.stem}: {c.title}")
def test_a_faulty_program_is_told_so(case: Case, tmp_path: Path, request) -> None:
    program = tmp_path / "program.py"
    program.write_text(case.program)
    found = message_of(program)
    assert found != "no error"
    if request.config.getoption("--update-snapshots"):
        case.message = found
        write(case.file)
    assert found == case.message


def write(file: Path) -> None:
    """Write a file of cases with the messages found so far."""
    parts = [f"[case {c.title}]\n{c.program}[out]\n{c.message}\n" for c in CASES if c.file == file]
    file.write_text("\n".join(parts))


def test_titles_tell_cases_apart() -> None:
    titles = [case.title for case in CASES]
    assert len(titles) == len(set(titles))
    assert len(CASES) >= 60
