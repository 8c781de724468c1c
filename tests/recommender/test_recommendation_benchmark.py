"""benchmarks/recommendation.py on small spaces: its tables, and how a stopped run continues."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path_factory):
    """Return spaces of one kernel on two made-up devices, with an optimum in common."""
    path = tmp_path_factory.mktemp("spaces")
    rng = np.random.default_rng(0)
    for device in ("one", "two"):
        lines = ["a,b,status,time_ms"]
        for a in range(1, 25):
            for b in range(1, 13):
                time_ms = np.exp(((a - 18) ** 2 + (b - 5) ** 2) / 100 + rng.normal(0, 0.02))
                status = "ok" if a * b < 250 else "RuntimeFailedConfig"
                lines.append(f"{a},{b},{status},{time_ms:.6f}")
        (path / f"bowl__{device}.csv").write_text("\n".join(lines) + "\n")
    return path


def benchmark(folder, progress, document, *options):
    """Run it where no Kernel Tuner is installed; return what it printed, and what was not known."""
    run = subprocess.run(
        [
            *(sys.executable, "benchmarks/recommendation.py", str(folder), "--seeds", "1"),
            *("--progress", str(progress), "--json", str(document)),
            *("--kernel-tuner", sys.executable, *options),
        ],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return run.stdout, run.stderr.splitlines()


@pytest.mark.exhaustive
def test_a_stopped_run_continues_and_tells_the_same(folder, tmp_path):
    progress, document = tmp_path / "progress.jsonl", tmp_path / "rows.json"
    told, found = benchmark(folder, progress, document)
    lines = progress.read_text().splitlines()
    assert found == lines
    rows = json.loads(document.read_text())["rows"]
    ran = [row for row in rows if "error" not in row]
    assert len(ran) == 2 * (3 + 3 + 3 + 5)  # devices; zero, five, warm, scratch
    for row in ran:
        for mark, mean in row["mean"].items():
            assert 0 < row["worst"][mark] <= row["p10"][mark] <= mean <= 1
    ours = [r for r in ran if (r["situation"], r["method"]) == ("scratch", "ours")]
    assert all(r["mean"]["100"] > 0.95 for r in ours)
    assert "### Spaces: held out (2)" in told
    assert "tuned on" not in told
    missing_peer = "No package metadata was found for kernel_tuner"
    assert any(t.startswith("- KT pso: ") and missing_peer in t for t in told.splitlines())

    random = next(line for line in lines if json.loads(line)["method"] == "random")
    progress.write_text("".join(f"{line}\n" for line in lines if line != random))
    again, missing = benchmark(folder, progress, document)
    assert [json.loads(line)["method"] for line in missing] == ["random"]
    assert json.loads(missing[0])["mean"] == json.loads(random)["mean"]
    assert set(again.splitlines()) == set(told.splitlines())


@pytest.mark.exhaustive
def test_a_search_runs_alone_with_seeds_of_its_own(folder, tmp_path):
    progress, document = tmp_path / "progress.jsonl", tmp_path / "rows.json"
    found = {}
    for first in (0, 7):
        options = ("--search", "random", "--first-seed", str(first))
        told, lines = benchmark(folder, progress, document, *options)
        rows = json.loads(document.read_text())["rows"]
        assert [(row["device"], row["method"]) for row in rows] == [
            ("one", "random"),
            ("two", "random"),
        ]
        assert "### Spaces: held out (2)" in told
        assert "Cost of our search" not in told
        found[first] = [json.loads(line) for line in lines]
    assert [row["first_seed"] for row in found[7]] == [7, 7]
    assert [row["mean"] for row in found[0]] != [row["mean"] for row in found[7]]
    assert len(progress.read_text().splitlines()) == 4
