"""What benchmarks share that time programs, before and now, beside torch, on one thread."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.cpu import interleaved
from tilecore import runtime

Row = dict[str, Any]


def options(document: str | None) -> argparse.ArgumentParser:
    """Return the options of such a benchmark: ``--json``, ``--rounds``, ``--match``."""
    parser = argparse.ArgumentParser(
        description=document, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--match", default="")
    return parser


def one_thread() -> None:
    """Let torch and kernels run on one thread."""
    torch.set_num_threads(1)
    runtime.set_num_threads(1)


def timed(label: str, calls: Mapping[str, Callable[[], Any]], rounds: int, width: int) -> Row:
    """Return the medians of ``ours``, ``torch`` and perhaps ``before``, by turns; print them."""
    samples = interleaved(dict(calls), 1, rounds)
    row = {f"{name}_us": 1e6 * statistics.median(own) for name, own in samples.items()}
    before = f"{row['before_us']:8.0f} -> " if "before_us" in row else ""
    print(
        f"{label:{width}} {before}{row['ours_us']:8.0f} us, torch {row['torch_us']:8.0f}: "
        f"{row['torch_us'] / row['ours_us']:.2f}",
        flush=True,
    )
    return {"label": label, **row}


def write(rows: Sequence[Row], path: Path | None) -> None:
    """Write the rows as JSON, if a path is given."""
    if path is not None:
        path.write_text(json.dumps(rows, indent=1) + "\n")
