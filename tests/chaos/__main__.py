"""The recorded chaos run: python -m tests.chaos --out benchmarks/results/chaos_DATE.md

300 trials over two Ray nodes on PostgreSQL while everything is killed; then the same undisturbed.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from tests.chaos.asker import AWAY, NOBODY, Asker
from tests.chaos.network import works
from tests.chaos.site import Site
from tests.chaos.storm import CUTS, PLAN, Blow, Ledger, Storm, audit
from tests.postgres import PROGRAMS
from tilecore.target import cpu_target

IS_AVX512 = cpu_target().isa == "avx512"
# 294 configs, or 312: fewer registers leave fewer register tiles. All of them are screened, and the
# finalists confirmed.
PROBLEM = {"m": 96, "n": 64, "k": 64} if IS_AVX512 else {"m": 192, "n": 64, "k": 128}
BODY = {"kernel": "gemm", "problem": PROBLEM, "max_trials": 1000, "time_limit_s": 36_000}
TRIALS, KILLS, ASKED = 300, 50, 200  # at least; ASKED: answers to each question
STARTED = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - STARTED:7.1f}] {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeats", type=float, default=60.0, help="recorded times per trial")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--logs", type=Path, help="keep the logs of all processes here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tcchaos", dir="/tmp") as folder:
        calm, _ = run(Path(folder) / "calm", repeats=1.0, storm=None, logs=None)
    with tempfile.TemporaryDirectory(prefix="tcchaos", dir="/tmp") as folder:
        rng = random.Random(options.seed)
        found, (blows, ledger, wall_s, asked) = run(
            Path(folder) / "storm", repeats=options.repeats, storm=rng, logs=options.logs
        )
    assert found == calm, f"best of the storm {found}, undisturbed {calm}"
    text = report(options.seed, blows, ledger, wall_s, found, asked)
    print(text)
    if options.out:
        options.out.write_text(text)
    kills = sum(blow.kind not in CUTS for blow in blows)
    assert ledger.trials >= TRIALS, f"expected {TRIALS} trials or more, found {ledger.trials}"
    assert kills >= KILLS, f"expected {KILLS} kills or more, found {kills}"


def run(folder: Path, *, repeats: float, storm: random.Random | None, logs: Path | None):
    """Run the 300 trials; return the best config and what happened."""
    folder.mkdir()
    try:
        with Site(folder, repeats=repeats) as site:
            run_id = site.queue(BODY, "chaos")
            site.wait_for_records(1)
            start, raging = time.monotonic(), Storm(site, storm or random.Random(0), say)
            say("working")
            with Asker(site, run_id, BODY) as asker:
                if storm is not None:
                    raging.rage(PLAN, lambda: site.run(run_id).is_finished)
                done = site.wait_for_end(run_id, 1800)
            asker.check(raging.strikes, ASKED if storm is not None else 1)
            wall_s = time.monotonic() - start
            assert site.queue(BODY, "chaos") == run_id
            say(f"{done.state} after {wall_s:.0f} s, {len(raging.blows)} blows")
            assert done.result is not None, done.error
            books = audit(site, done)
            return done.result["best"]["config"], (raging.blows, books, wall_s, asker.counts())
    finally:
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
            for log in folder.glob("*.log"):
                shutil.copy(log, logs)


def report(
    seed: int, blows: list[Blow], ledger: Ledger, wall_s: float, best: object,
    asked: Mapping[int, int],
) -> str:  # fmt: skip
    by_kind = defaultdict(list)
    for blow in blows:
        by_kind[blow.kind].append(blow.recovery_s)
    kills = sum(blow.kind not in CUTS for blow in blows)
    links = "network namespaces with own addresses" if works() else "one host, no links to cut"
    lines = [
        f"# Chaos: {ledger.trials} trials, {kills} kills, {len(blows) - kills} links cut",
        "",
        f"{time.strftime('%Y-%m-%d')}, `python -m tests.chaos --seed {seed}` (`make chaos`); "
        f"Python {platform.python_version()}, Ray {version('ray')}, SQLAlchemy "
        f"{version('sqlalchemy')}, PostgreSQL {PROGRAMS[-1].parts[-3]}; "
        f"{os.cpu_count()} cores, shared with other work; the database, two Ray nodes and a head: "
        f"{links}. Candidates are stand-ins that sleep for "
        "recorded times (`tests/chaos/stand_in.py`), everything else is the real thing.",
        "",
        f"The run ended after {wall_s:.0f} s: {ledger.records} records of {ledger.trials} trials, "
        f"{ledger.distinct_trials} distinct, 0 lost, 0 doubled; {ledger.executions} executions "
        f"({ledger.executed_twice} more than trials: cut off by a kill after the work, before the "
        f"record), {ledger.attempts} leases. Its best is that of the undisturbed run: `{best}`.",
        "",
        f"All the while a client asked the API for a recommendation and for the run: "
        f"{asked[200]:,} right answers, {asked[AWAY]} times 503 right after PostgreSQL had been "
        f"killed or cut off, {asked[NOBODY]} times nobody there right after the API had been.",
        "",
        "Recovery: seconds from the blow (a cut link: from the cut, which lasts 2 to 8 s) to the "
        "second new record. A trial sleeps 0.1 to 3 s.",
        "",
        "| killed with SIGKILL | times | median s | longest s |",
        "|---|---|---|---|",
    ]
    for kind in PLAN:
        if times := by_kind.get(kind):
            row = f"{len(times)} | {statistics.median(times):.1f} | {max(times):.1f}"
            lines.append(f"| {kind} | {row} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
