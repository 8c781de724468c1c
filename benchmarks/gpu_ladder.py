"""The ladder of public TileLang programs on GPUs, without a GPU: machine code, and the emulator.

    python benchmarks/gpu_ladder.py TILELANG --results FILE [--limit 120] [--only REGEX]
                                    [--target sm_80|h100]
    python benchmarks/gpu_ladder.py TILELANG --results FILE --device [--jobs 8]    # on a GPU
    python benchmarks/gpu_ladder.py --results FILE --table OUT.md

Every program of benchmarks/data/gpu_ladder.toml (rows 17 to 46) runs for sm_80 and sm_90a as a
process of its own: what it compiles is built by NVRTC, and runs on the emulator in place of a
device; its own comparisons are the verdict. Sizes are those of docs/compatibility_arguments.toml
and gpu_ladder.toml, tuners take the first config that compiles. Results are lines of JSON, one per
program and target; the same command goes on where it stopped. TILELANG is a checkout of the public
repository. With --device the programs run on this machine's GPU, several at a time, at the sizes
that their authors gave them; what they print is kept.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LADDER = ROOT / "benchmarks" / "data" / "gpu_ladder.toml"
ARGUMENTS = ROOT / "docs" / "compatibility_arguments.toml"
TARGETS = {"sm_80": "sm_80", "h100": "sm_90a"}  # names for the compiler, and of the columns
REASON_CHARACTERS = 110
SAID_CHARACTERS = 3000
PLAIN = ("passes its own check", "runs, checks nothing")
DEFINES = "defines kernels, runs none"
Row = dict[str, Any]


def rungs() -> Iterator[tuple[int, str]]:
    """Yield row and path of every program, easiest first."""
    for row, paths in tomllib.loads(LADDER.read_text())["rows"].items():
        for path in paths:
            yield int(row), path


def climb(folder: Path, path: str, target: str, limit_s: float) -> Row:
    """Return what became of one program for one target."""
    from tilecore.compat import gpu_builds, survey
    from tilecore.compat.gpu_builds import Builds
    from tilecore.compat.runner import Machine
    from tilecore.target import parse_gpu_target

    gpu = parse_gpu_target(target)
    known, ladder = tomllib.loads(ARGUMENTS.read_text()), tomllib.loads(LADDER.read_text())
    given = known.get(path.removeprefix("examples/"), ladder["arguments"].get(path, ()))
    given = ladder["kernels"].get(path, given)
    tests = ladder["tests"].get(path, ())
    with tempfile.TemporaryDirectory(prefix="tilecore-") as scratch:
        builds = Builds([gpu], Path(scratch) / "builds")
        (found,) = survey.survey(
            [folder / path], folder, limit_s, arguments={path: given}, tests=tests,
            builds=builds, machine=Machine(divmod(gpu.capability, 10), target),
        )  # fmt: skip
        kernels = [asdict(b) for b in gpu_builds.read(builds.path)]
    outcome = asdict(found.outcome)
    outcome["reason"] = outcome["reason"].replace(f"{ROOT}/", "")
    if path in ladder["kernels"] and outcome["kind"] in PLAIN:
        outcome["kind"] = DEFINES
    row = {"program": path, "target": target, "tests": " ".join(tests), "wall_s": found.wall_s}
    return {**row, **outcome, "built": kernels}


def climb_on_device(
    folder: Path, paths: Sequence[str], limit_s: float, jobs: int, keep: Callable[[Row], None]
) -> None:
    """Pass what becomes of programs on this machine's GPU to ``keep``."""
    from tilecore.compat import survey
    from tilecore.compat.runner import Machine

    calls = tomllib.loads(LADDER.read_text())["kernels"]
    with tempfile.TemporaryDirectory(prefix="tilecore-") as scratch:

        def tell(found: survey.Surveyed) -> None:
            said = Path(scratch) / f"{found.program.replace('/', '-')}.txt"
            printed = said.read_text(errors="replace")[-SAID_CHARACTERS:] if said.exists() else ""
            row = {"program": found.program, "target": "device", "wall_s": found.wall_s}
            keep({**row, **asdict(found.outcome), "printed": printed})

        survey.survey(
            [folder / p for p in paths], folder, limit_s, arguments=calls, jobs=jobs, tell=tell,
            machine=Machine(is_device=True), outputs=Path(scratch),
        )  # fmt: skip


def read(path: Path) -> dict[tuple[str, str], Row]:
    """Return the results of a file by program and target."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return {(r["program"], r["target"]): r for r in rows}


def code_cell(row: Row | None) -> str:
    """Return what NVRTC made of a program's kernels."""
    if row is None:
        return "not run"
    failed = [k["error"] for k in row["built"] if k["error"]]
    made = [k for k in row["built"] if not k["error"]]
    if failed and not made:
        return _short(failed[0])
    if not made:
        return "no kernel"
    parts = [f"{len(made)} of {len(row['built'])}"] if failed else [f"{len(made)}"]
    spills = max(k["spill_bytes"] for k in made)
    conflicts = sum(k["conflicts"] for k in made)
    units = sorted({u for k in made for u in k["units"].split()})
    parts += [f"{max(k['registers'] for k in made)} registers"]
    parts += [f"{spills} B spilled"] if spills else []
    parts += [f"{conflicts} accesses with conflicts"] if conflicts else []
    return ", ".join([*parts, " ".join(units)]).rstrip(", ")


def verdict_cell(row: Row | None) -> str:
    """Return the emulator's verdict."""
    if row is None:
        return "not run"
    kind, reason = row["kind"], row["reason"]
    tests = f" ({row['passed']} of {row['passed'] + row['failed']} tests)" if row["passed"] else ""
    if kind in (*PLAIN, DEFINES):
        return kind + tests
    if kind == "rejected by tilecore":
        return _short(reason) + tests
    return _short(f"{kind}: {reason}" if reason else kind) + tests


def _short(text: str) -> str:
    text = re.sub(r" \([\w.]+\.py:\d+\)$", "", text).replace("|", "/")
    return text if len(text) <= REASON_CHARACTERS else f"{text[:REASON_CHARACTERS]}..."


def table(found: Mapping[tuple[str, str], Row]) -> str:
    """Return the ladder as a Markdown table, a line per program."""
    heads = [f"{what} {name}" for name in TARGETS.values() for what in ("kernels,", "emulator,")]
    lines = [f"| row | program | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
    for number, path in rungs():
        cells, shown = [], path
        for target in TARGETS:
            row = found.get((path, target))
            cells += [code_cell(row), verdict_cell(row)]
            shown = shown if row is None or not row.get("tests") else f"{path} {row['tests']}"
        lines.append(f"| {number} | {shown} | {' | '.join(cells)} |")
    for target, name in TARGETS.items():
        kinds = Counter(r["kind"] for (_, t), r in found.items() if t == target)
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        kernels = [k for (_, t), r in found.items() if t == target for k in r["built"]]
        made = [k for k in kernels if not k["error"]]
        spilled = sum(k["spill_bytes"] > 0 for k in made)
        lines += ["", f"{name}: {counts}; {len(made)} of {len(kernels)} kernels built, "
                  f"{spilled} of them with spills."]  # fmt: skip
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, nargs="?", help="a checkout of TileLang's repository")
    parser.add_argument("--results", type=Path, required=True, help="lines of JSON, appended to")
    parser.add_argument("--only", default="", help="only paths with this regex in them")
    parser.add_argument("--target", choices=list(TARGETS), help="only this one of the targets")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds per program")
    parser.add_argument("--table", type=Path, help="write the table of the results (Markdown)")
    parser.add_argument("--device", action="store_true", help="run on this machine's GPU")
    parser.add_argument("--jobs", type=int, default=8, help="--device: programs at a time")
    given = parser.parse_args(argv)
    known = read(given.results)
    if given.device and given.folder is not None:
        with given.results.open("a") as file:

            def keep(row: Row) -> None:
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(f"{row['wall_s']:6.1f} s  {row['program']}: {verdict_cell(row)}", flush=True)

            paths = [p for _, p in rungs() if re.search(given.only, p)]
            left = [p for p in paths if (p, "device") not in known]
            climb_on_device(given.folder.resolve(), left, given.limit, given.jobs, keep)
    elif given.folder is not None:
        with given.results.open("a") as file:
            for _, path in rungs():
                for target in [given.target] if given.target else TARGETS:
                    if (path, target) in known or not re.search(given.only, path):
                        continue
                    if not (given.folder / path).is_file():
                        print(f"{path}: expected below {given.folder}, found nothing")
                        continue
                    row = climb(given.folder.resolve(), path, target, given.limit)
                    known[path, target] = row
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                    shown = f"{row['wall_s']:6.1f} s  {path} {target}: {verdict_cell(row)}"
                    print(f"{shown}; {code_cell(row)}", flush=True)
    if given.table is not None:
        given.table.write_text(table(known))
    return 0


if __name__ == "__main__":
    sys.exit(main())
