"""Choose the winners that ship with the package from the recordings of this repository.

    python benchmarks/ship_winners.py benchmarks/data/cpu_2026-11-22

The best configs of every recorded shape, for the kernels where they help: with shapes left out in
turn, the first choice by one of the rules of recommender/shipped.py beats that of the analytic
model and of the cost model by train_priors.py's margin, and no cost model ships. Written to
recommender/winners, one file per instruction set. benchmarks/own_kernels.py tells more.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from own_kernels import judged, recorded_shape, recordings
from train_priors import MARGIN

from recommender.prior import prior
from recommender.shipped import FOLDER, RULES, Winners, file_name, to_bytes
from recommender.training import Group, make_groups
from tilecore import kernels


def chosen(groups: Sequence[Group], seed: int) -> Winners | None:
    """Return what ships for a kernel, and say why."""
    hardware, kernel = groups[0].hardware, groups[0].workload.kernel
    figures = [reached for _, reached in judged(groups, seed)]
    mean = {
        name: float(np.mean([f[name] for f in figures]))
        for name in ("analytic", "model", *(f"winners ({rule})" for rule in RULES))
    }
    rule = max(RULES, key=lambda r: mean[f"winners ({r})"])
    is_better = mean[f"winners ({rule})"] > max(mean["analytic"], mean["model"]) + MARGIN
    has_model = prior(kernel, hardware) is not None
    verdict = "a cost model ships" if has_model else f"ships by {rule}" if is_better else "no gain"
    print(kernel, verdict, {name: round(value, 3) for name, value in mean.items()})
    if has_model or not is_better:
        return None
    shapes = tuple(recorded_shape(g) for g in groups)
    return Winners(rule, hardware.name, frozenset(hardware.features), shapes)


def main() -> None:
    """Choose and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    measured = recordings(args.folder)
    found = {}
    for kernel in sorted({m.workload.kernel for m in measured}):
        winners = chosen(list(make_groups(measured, kernels.get(kernel))), args.seed)
        if winners is not None:
            found[kernel] = winners
    hardware = measured[0].hardware
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / file_name(hardware.arch)
    path.write_bytes(to_bytes(hardware, found))
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
