"""DeepSeek's TileKernels on a CPU or an emulated GPU: its own tests with small sizes.

    python benchmarks/tile_kernels.py TILEKERNELS --target llvm|h100|sm_80 --results FILE
                                      [--cases 3] [--limit 240] [--only REGEX]
    python benchmarks/tile_kernels.py --results FILE --table OUT.md

TILEKERNELS is a checkout of the public repository. Its files of tests run unchanged in a copy but
for the sizes (SIZES) and the number of cases: of each test function as many as asked for, evenly
spread over its parameters. One process per file; its own comparisons are the verdict. Results are
lines of JSON, one per file and target; the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TARGETS = {"llvm": "CPU", "h100": "H100", "sm_80": "A100"}
SIZES = {  # by file: what stands there, and what stands there instead
    "tile_kernels/testing/generator.py": (
        ("base_list = [4001, 8001]", "base_list = [67]"),
        ("for num_tokens in (4001,):", "for num_tokens in (9,):"),
        ("base_list = [576, 2048, 2560, 3072, 4096, 6144, 7168]", "base_list = [576, 1024]"),
        ("device_num_sms - 20, device_num_sms, ", "3"),
    ),
    "tests/mhc/*.py": (
        (r"'n1', \[[\d, ]+\]", "'n1', [65]"),
        (r"'h(idden_size)?', \[[\d, ]+\]", r"'h\1', [1280]"),
        (r"\(1, 8192, 4,", "(1, 65, 4,"),
    ),
}
CONFTEST = '''

def pytest_collection_modifyitems(config, items):
    """Keep some cases of each test function; benchmarks are left out."""
    cases = {}
    for item in items:
        if not any(item.iter_markers("benchmark")):
            cases.setdefault((item.fspath, item.originalname), []).append(item)
    kept = []
    for found in cases.values():
        count = min(len(found), CASES)
        kept += [found[(2 * i + 1) * len(found) // (2 * count)] for i in range(count)]
    items[:] = kept
'''
Row = dict[str, Any]


def shrink(source: Path, target: Path, cases: int) -> None:
    """Copy the repository with its sizes made small.

    Raises:
        SystemExit: a file no longer has what should be replaced.
    """
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(".git"))
    for pattern, changes in SIZES.items():
        seen: Counter[str] = Counter()
        for path in target.glob(pattern):
            text = path.read_text()
            for old, new in changes:
                rule = old if "\\" in old else re.escape(old)
                text, count = re.subn(rule, new if "\\" in old else new.replace("\\", r"\\"), text)
                seen[old] += count
            path.write_text(text)
        if missing := [old for old, _ in changes if not seen[old]]:
            raise SystemExit(f"expected {missing} in {pattern} of TileKernels, found nothing")
    with (target / "tests" / "conftest.py").open("a") as file:
        file.write(f"\n\nCASES = {cases}\n{CONFTEST}")


def run(copy: Path, path: Path, target: str, limit_s: float) -> Row:
    """Return what became of one file of tests."""
    from tilecore.compat import survey
    from tilecore.compat.runner import THIS_MACHINE, Machine
    from tilecore.target import parse_gpu_target

    machine = THIS_MACHINE
    if target != "llvm":
        machine = Machine(divmod(parse_gpu_target(target).capability, 10), target)
    (found,) = survey.survey([path], copy / "tests", limit_s, tests=("-q",), machine=machine)
    outcome = asdict(found.outcome)
    outcome["reason"] = outcome["reason"].replace(f"{ROOT}/", "").replace(f"{copy}/", "")
    program = path.relative_to(copy / "tests").as_posix()
    return {"program": program, "target": target, "wall_s": round(found.wall_s, 1), **outcome}


def read(path: Path) -> dict[tuple[str, str], Row]:
    """Return the results of a file by program and target; the last one of each counts."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return {(r["program"], r["target"]): r for r in rows}


def table(rows: Mapping[tuple[str, str], Row]) -> str:
    """Return the results as Markdown: a line per file, a column per target."""
    targets = [t for t in TARGETS if any(target == t for _, target in rows)]
    lines = [f"| file | {' | '.join(TARGETS[t] for t in targets)} |", "|---" * (len(targets) + 1)]
    lines[1] += "|"
    for program in sorted({p for p, _ in rows}):
        cells = [_cell(rows.get((program, target))) for target in targets]
        lines.append(f"| {program} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(row: Row | None) -> str:
    if row is None:
        return "not run"
    passed, failed = row["passed"], row["failed"]
    counts = f" ({passed} of {passed + failed})" if passed + failed else ""
    reason = "" if row["kind"] == "passes its own check" else f": {row['reason'][:110]}"
    return f"{row['kind']}{counts}{reason}".replace("|", "\\|")


def main() -> None:
    """Run the files that have no result yet, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="a checkout of TileKernels")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--target", choices=TARGETS, default="h100")
    parser.add_argument("--cases", type=int, default=3, help="of each test function")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds per file")
    parser.add_argument("--only", default="", help="files with this regex in their path")
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    if given.table is not None:
        given.table.write_text(table(read(given.results)))
        return
    if given.folder is None:
        parser.error("expected a checkout of TileKernels")
    done = read(given.results)
    with tempfile.TemporaryDirectory(prefix="tilecore-") as scratch:
        copy = Path(scratch) / "TileKernels"
        shrink(given.folder, copy, given.cases)
        sys.path.insert(0, str(copy))
        for path in sorted(copy.glob("tests/*/test_*.py")):
            name = path.relative_to(copy / "tests").as_posix()
            if (name, given.target) in done or not re.search(given.only, name):
                continue
            row = run(copy, path, given.target, given.limit)
            print(f"{row['wall_s']:6.1f} s  {name}: {_cell(row)}", flush=True)
            with given.results.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
