"""What benchmarks share that time programs, before and now, beside torch, on one thread."""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.cpu import interleaved
from tilecore import runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.ir.nodes import PrimFunc

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A program of an element type with its inputs, the exact result, and torch's call.

    The program's output comes last, of ``out_type``.
    """

    label: str
    dtype: str
    program: PrimFunc
    inputs: Sequence[torch.Tensor]
    exact: torch.Tensor
    rival: Callable[[], Any]
    out_type: torch.dtype

    @property
    def tolerance(self) -> float:
        """How far off a result may be, of its largest element."""
        return 1e-5 if self.dtype == "float32" else 2e-2


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


def before_and_now(
    cases: Iterable[Case],
    given: argparse.Namespace,
    without: Callable[[], AbstractContextManager[Any]],
    width: int,
) -> list[Row]:
    """Return the medians of cases; "before" is what is compiled where ``without`` is entered."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        now, before = (ArtifactStore(Path(folder) / name) for name in ("now", "before"))
        for case in cases:
            if not re.search(given.match, case.label):
                continue
            kernels = {"ours": compile(case.program, store=now)}
            with without():
                kernels["before"] = compile(case.program, store=before)
            calls: dict[str, Callable[[], Any]] = {"torch": case.rival}
            for name, kernel in kernels.items():
                out = torch.empty(case.exact.shape, dtype=case.out_type)
                calls[name] = partial(runtime.load(kernel), *case.inputs, out)
                calls[name]()
                error = (out.double() - case.exact).abs().max() / case.exact.abs().max()
                assert error.item() < case.tolerance, (case.label, name, error)
            found.append(timed(case.label, calls, given.rounds, width))
    return found


def write(rows: Sequence[Row], path: Path | None) -> None:
    """Write the rows as JSON, if a path is given."""
    if path is not None:
        path.write_text(json.dumps(rows, indent=1) + "\n")
