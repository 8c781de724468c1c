"""Benchmarks start by the command that they name."""

import ast
from pathlib import Path

import pytest

SCRIPTS = sorted(Path(__file__).parents[2].joinpath("benchmarks").glob("*.py"))


def starts(script: Path) -> bool:
    """Return whether the script is a program and not only imported by others."""
    return '__name__ == "__main__"' in script.read_text()


@pytest.mark.parametrize("script", [s for s in SCRIPTS if starts(s)], ids=lambda s: s.stem)
def test_scripts_that_import_from_the_root_are_started_as_modules(script):
    tree = ast.parse(script.read_text())
    modules = {n.module.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    command = f"benchmarks/{script.name}"
    if modules & {"tests", "benchmarks"}:
        command = f"-m benchmarks.{script.stem}"
    assert f"python {command}" in (ast.get_docstring(tree) or "")
