"""Train the cost models that ship with the package on the recordings of this repository.

    python benchmarks/train_priors.py benchmarks/data/cpu_2026-11-22

One model per kernel, written to recommender/priors if on shapes left out one by one it beats the
analytic model and the lookup of the nearest by more than what seeds make of it.
benchmarks/own_kernels.py tells more.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

from own_kernels import recordings

from recommender.prior import FOLDER, file_name
from recommender.training import train
from tilecore import kernels

MARGIN = 0.005  # of the best speed


def main() -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    measured = recordings(args.folder)
    FOLDER.mkdir(exist_ok=True)
    for kernel in sorted({m.workload.kernel for m in measured}):
        outcome = train(measured, kernels.get(kernel), folds=len(measured))
        path = FOLDER / file_name(kernel, measured[0].hardware.arch)
        path.unlink(missing_ok=True)
        rivals = max(outcome.metrics["analytic"], outcome.metrics["nearest"])
        if outcome.metrics["model"] > rivals + MARGIN:
            path.write_bytes(gzip.compress(outcome.model.to_bytes(), mtime=0))
        print(kernel, "ships" if path.exists() else "does not ship", outcome.metrics)


if __name__ == "__main__":
    main()
