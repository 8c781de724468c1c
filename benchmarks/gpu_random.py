"""Random computations and tile programs of the tests on a GPU: are their results right?

    python benchmarks/gpu_random.py computations | programs [--seconds 40] [--jobs 12]
        [--device cuda | "emulated h200"] [--out FILE] [--seed N]

Computations (``tests/tilecore/computation_generator.py``) are compared with float64, tile programs
(``program_generator.py``) with the interpreter. Many processes look for faults at once; one that
hangs or dies is found by what it began, and another takes its place. Wrong ones are printed and
written whole; the exit status is 1 if there are any.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests/tilecore"))

import computation_generator
import program_generator
from gpu_children import Child, messages
from gpu_pack import to_torch

import tilecore
import tilecore.language as T
from tilecore.interpreter import run as interpret
from tilecore.pass_config import FLOAT32_PRODUCTS

SILENT_S = 25.0  # a process may take so long for one of them
MOST_BLOCKS = 12  # of a program on the emulator, which runs each thread by itself
PRINTED = 6  # faults
TF32 = 2.0**-10

Check = Callable[[Any, str], str]  # (what was drawn, device) -> what is wrong, or ""


def place_of(device: str) -> str:
    """Return where torch has the tensors."""
    return "cuda" if device == "cuda" else "cpu"


def computation_fault(drawn: Any, device: str) -> str:
    """Return how the results of a computation differ from the exact ones."""
    names: dict[str, Any] = {"torch": torch, "F": F}
    exec(drawn.source, names)
    inputs = []
    for x in drawn.inputs:  # lying as they lie
        inputs.append(
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=place_of(device))
        )
        inputs[-1].copy_(x)
    target = "auto" if device == "cuda" else device
    found = tilecore.compute(names["computation"], target=target)(*inputs)
    listed = [found] if isinstance(found, torch.Tensor) else list(found)
    for i, (got, want) in enumerate(zip(listed, drawn.results, strict=True)):
        if tuple(got.shape) != want.shape:
            return f"result {i}: expected shape {want.shape}, found {tuple(got.shape)}"
        gap = (got.double().cpu() - want.exact).abs()
        wrong = ~(gap <= want.error)  # NaN is
        if bool(wrong.any()):
            worst = float((gap / want.error)[wrong].max())
            return (
                f"result {i}: {int(wrong.sum())} of {gap.numel()} elements wrong, the worst by"
                f" {worst:.3g} times what is allowed"
            )
    return ""


def program_fault(program: Any, device: str) -> str:
    """Return how the results of a tile program differ from the interpreter's."""
    if device != "cuda" and np.prod(program.grid) > MOST_BLOCKS:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.py"
        file.write_text(program.source)
        func = runpy.run_path(str(file), {"T": T})["main"]
        wanted = [array.copy() for array, _ in program.outputs]
        interpret(func, *[x.copy() for x in program.inputs], *wanted, seed=5)
        target = "h200" if device == "cuda" else device
        kernel = tilecore.compile(func, target=target, config={FLOAT32_PRODUCTS: "exact"})
    place = place_of(device)
    inputs = [to_torch(x, place) for x in program.inputs]
    for turn in range(2):  # the second time in memory that the first has used
        outputs = [to_torch(array, place) for array, _ in program.outputs]
        kernel(*inputs, *outputs)
        for i, (out, want, (_, tolerance)) in enumerate(
            zip(outputs, wanted, program.outputs, strict=True)
        ):
            gap = np.abs(out.double().cpu().numpy() - want.astype(np.float64))
            worst = np.nan_to_num(gap, nan=np.inf).max(initial=0.0)
            if worst > tolerance:
                wrong = int((~(gap <= tolerance)).sum())
                return (
                    f"call {turn}, output {i}: {wrong} of {gap.size} elements wrong, the worst by"
                    f" {worst:.3g}, allowed {tolerance:.3g}"
                )
    return ""


KINDS: dict[str, tuple[Callable[[], Any], Check]] = {
    "computations": (computation_generator.computations, computation_fault),
    "programs": (program_generator.programs, program_fault),
}


def search(kind: str, device: str, seed: int, until: float, pipe: Connection) -> None:
    """Draw and check until it is time; send each one's text before, and what is wrong after."""
    torch.set_num_threads(1)
    computation_generator.FLOAT32_OPERANDS = TF32
    strategy, fault = KINDS[kind][0](), KINDS[kind][1]

    def check(drawn: Any) -> None:
        if time.monotonic() > until:
            pipe.close()
            os._exit(0)
        pipe.send({"began": repr(drawn)})
        try:
            said = fault(drawn, device)
            status = "wrong" if said else "right"
        except Exception as error:  # noqa: BLE001  # a result, too
            said, status = f"{type(error).__name__}: {error}", "failed"
        pipe.send({"status": status, "said": said[:2000]})
        if status == "failed" and ("CUDA" in said or "cuda" in said.lower()):
            pipe.close()  # nothing runs any more in a broken context
            os._exit(3)

    for turn in range(1000):
        once = hypothesis.settings(
            max_examples=500, database=None, deadline=None, phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )  # fmt: skip
        hypothesis.seed(seed + turn)(once(hypothesis.given(strategy)(check)))()


def run(kind: str, device: str, given: argparse.Namespace) -> int:
    """Have processes search, and print what they found; return how many faults there were."""
    start = time.monotonic()
    until = start + given.seconds
    counts: collections.Counter[str] = collections.Counter()
    faults: list[dict[str, str]] = []
    began: dict[Child, str] = {}
    seeds = iter(range(given.seed, 1 << 30, 10_000))

    def another() -> Child:
        seed = next(seeds)
        return Child(str(seed), functools.partial(search, kind, device, seed, until))

    children = [another() for _ in range(given.jobs)]
    while children and time.monotonic() < until + SILENT_S:
        for child, message in messages(children, until + SILENT_S, SILENT_S):
            if message is None:
                children.remove(child)
                left, code = began.pop(child, ""), child.end()
                if left:
                    _note(faults, counts, "died or hung", f"exit status {code}", left, given.out)
                if time.monotonic() < until - 5:
                    children.append(another())
                    break
            elif "began" in message:
                began[child] = message["began"]
            elif "status" in message:
                text = began.pop(child, "")
                if message["status"] == "right":
                    counts["right"] += 1
                else:
                    _note(faults, counts, message["status"], message["said"], text, given.out)
            else:
                _note(faults, counts, "failed", str(message), began.pop(child, ""), given.out)
    for child in children:
        child.end()
    for fault in faults[:PRINTED]:
        print(f"--- {fault['status']}: {fault['said'][:300]}\n{fault['source'][:900]}", flush=True)
    print(f"[{time.monotonic() - start:5.1f} s] {kind} on {device}: {dict(counts)}", flush=True)
    return len(faults)


def _note(
    faults: list[dict[str, str]], counts: collections.Counter[str], status: str, said: str,
    source: str, out: Path | None,
) -> None:  # fmt: skip
    counts[status] += 1
    faults.append({"status": status, "said": said, "source": source})
    if out is not None:
        with out.open("a") as file:
            file.write(json.dumps(faults[-1]) + "\n")


def main() -> int:
    """Search one kind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TILECORE_DATA_DIR"] = folder
        return 1 if run(given.kind, given.device, given) else 0


if __name__ == "__main__":
    sys.exit(main())
