"""What the documents name is there: functions, for whoever imports the package alone, and files."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)


def test_every_function_of_the_package_that_a_document_calls_is_there():
    texts = [ROOT / "README.md", *ROOT.joinpath("docs").glob("*.md")]
    found = {
        name for text in texts for name in re.findall(r"\b(tilecore(?:\.\w+)+)\(", text.read_text())
    }
    assert "tilecore.runtime.set_num_threads" in found
    for name in sorted(found):  # a process each: what one imports, the next must not find
        done = subprocess.run(
            [sys.executable, "-c", f"import tilecore; {name}"], capture_output=True, text=True
        )
        assert done.returncode == 0, f"{name}: {done.stderr}"


def test_every_file_that_a_document_links_to_is_there():
    pages = [*ROOT.glob("*.md"), *ROOT.joinpath("docs").glob("*.md")]
    pages += ROOT.joinpath("benchmarks/results").glob("*.md")
    missing = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text())
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert not missing


def test_every_module_that_the_architecture_names_is_there():
    """It said that ``ir/arithmetic/uniform.py`` was one of the passes."""
    ours = ("tilecore", "recommender", "workers", "db", "tuner_service", "tests", "benchmarks")
    files = [path for folder in ours for path in ROOT.joinpath(folder).rglob("*.py")]
    named = re.findall(r"`([\w/]+\.py)(?::(\w+))?[`:]", (ROOT / "ARCHITECTURE.md").read_text())
    assert ("tilecore/compiler.py", "compile") in named

    def is_there(module, name):
        found = [path for path in files if path.as_posix().endswith(f"/{module}")]
        return any(re.search(rf"\b{name}\b", path.read_text()) for path in found)

    assert not [f"{module}:{name}" for module, name in named if not is_there(module, name)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", ["README.md", "docs/recommendation.md", "docs/compute.md"])
def test_what_a_document_shows_runs_as_it_stands(page, tmp_path):
    """Names were missing in what readers paste."""
    blocks = BLOCK.findall((ROOT / page).read_text())
    lines = [line for kind, text in blocks if not kind for line in text.splitlines()]
    commands = [line for line in lines if line.startswith("$ tilecore ")]
    programs = [text for kind, text in blocks if kind == "python"]
    assert programs
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "TILECORE_DATA_DIR": str(tmp_path / "data"),
    }  # fmt: skip

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, (arguments, done.stderr[-3000:])

    for command in commands:
        run("-m", "tuner_service", *shlex.split(command)[2:])
    for number, text in enumerate(programs):
        program = tmp_path / f"program_{number}.py"
        program.write_text(text)
        run(str(program))
