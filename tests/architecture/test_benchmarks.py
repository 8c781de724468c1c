"""Benchmarks start by the command that they name."""

import ast
import functools
from pathlib import Path

import pytest

SCRIPTS = sorted(Path(__file__).parents[2].joinpath("benchmarks").glob("*.py"))


def starts(script: Path) -> bool:
    """Return whether the script is a program and not only imported by others."""
    return '__name__ == "__main__"' in script.read_text()


@functools.cache
def modules_of(script: Path) -> frozenset[str]:
    """Return the first parts of the modules that a script takes names from."""
    nodes = ast.walk(ast.parse(script.read_text()))
    return frozenset(n.module.split(".")[0] for n in nodes if isinstance(n, ast.ImportFrom))


@functools.cache
def from_the_root(script: Path) -> bool:
    """Return whether a script, or one beside it that it imports, needs the root of the project."""
    modules = modules_of(script)
    beside = (script.with_name(f"{name}.py") for name in modules)
    return bool(modules & {"tests", "benchmarks"}) or any(
        s.is_file() and s != script and from_the_root(s) for s in beside
    )


@pytest.mark.parametrize("script", [s for s in SCRIPTS if starts(s)], ids=lambda s: s.stem)
def test_scripts_that_import_from_the_root_are_started_as_modules(script):
    tree = ast.parse(script.read_text())
    command = f"benchmarks/{script.name}"
    if from_the_root(script):
        command = f"-m benchmarks.{script.stem}"
    assert f"python {command}" in (ast.get_docstring(tree) or "")
    if from_the_root(script):  # beside a script that is a module nothing is found by its bare name
        assert not modules_of(script) & {s.stem for s in SCRIPTS if from_the_root(s)}
