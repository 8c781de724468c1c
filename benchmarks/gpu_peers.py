"""Our GPU kernels beside torch (cuBLAS, cuDNN), Triton and TileLang: in turns, one run.

    python benchmarks/gpu_peers.py build FOLDER [--measured FILE]    # no GPU
    python benchmarks/gpu_peers.py warm FOLDER [--jobs N]            # on the GPU: Triton's compiler
    python benchmarks/gpu_peers.py run FOLDER [--out FILE] [--only REGEX] [--seconds S]
    python benchmarks/gpu_peers.py rehearse [--only REGEX]           # no GPU: small, emulated

``build`` compiles some configs of each of our kernels: the fastest of measurements
(``tilecore import`` reads such files) and the recommender's. ``run`` checks every participant
against a reference in float64, takes the fastest of each one's configs by a few calls, of close
ones in turns, and times these, twice: by events, each call after a write of more than L2 holds, and
by replays of CUDA graphs of up to 20 calls back to back. It works in a process of its own that is
started again without a participant which has broken or stopped it. Needs torch, Triton and
cuda-bindings; TileLang takes part where it is installed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpu_peers_cases as cases
from gpu_peers_compare import (
    COLD_BYTES,
    COLD_WRITES,
    Clock,
    compare,
    label_of,
    prepare,
    summary,
)  # fmt: skip

LIMIT_S, ATTEMPTS = 25.0, 4  # of a workload
GRACE_S = 5.0  # of the last one, after the time that a run has
SHARED_BYTES = 232_448  # of a block of sm_90
PREPARING = "inputs and reference"
WARMED = "warm.json"  # what Triton could not compile


# --- run: on the GPU ------------------------------------------------------------------------------


def run(folder: Path, out: Path | None, only: str, seconds: float) -> None:
    """Compare the workloads of a folder, in order, until the time is over."""
    import gpu_peers_triton  # noqa: F401  # loaded once: forks share it

    begin = time.monotonic()
    places = [p for p in sorted(folder.iterdir()) if (p / "case.json").is_file()]
    wanted = [p for p in places if re.search(only, label_of(_case(p)))]
    left_out = _not_compiled(folder)
    record: dict[str, Any] = {"torch": torch.__version__, "cold_bytes": COLD_BYTES * COLD_WRITES}
    rows: list[dict[str, Any]] = []
    record["rows"] = rows
    attempts = 0
    while wanted:
        ended = _serve(wanted, left_out, begin + seconds, record, rows, out)
        attempts = 1 if ended else attempts + 1
        if time.monotonic() > begin + seconds:
            break
        is_hopeless = PREPARING in left_out.get(wanted[0].name, ()) if wanted else False
        if attempts >= ATTEMPTS or is_hopeless:
            print(f"{label_of(_case(wanted[0]))}: given up", flush=True)
            wanted.pop(0)
            attempts = 0
    for place in wanted:
        print(f"not run: {label_of(_case(place))}", flush=True)
    print(f"{time.monotonic() - begin:.0f} s in all", flush=True)


def _serve(
    wanted: list[Path], left_out: dict[str, list[str]], deadline: float, record: dict[str, Any],
    rows: list[dict[str, Any]], out: Path | None,
) -> int:  # fmt: skip
    """Compare what is wanted in a new process until that ends; return how many have been."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_work_through, args=(theirs, list(wanted), left_out, deadline)
    )
    process.start()
    theirs.close()
    ended, entry, limit = 0, "", time.monotonic() + LIMIT_S
    last = deadline + GRACE_S
    try:
        while True:
            if not ours.poll(max(0.0, min(limit, last) - time.monotonic())):
                raise TimeoutError
            kind, *values = ours.recv()
            if kind == "entry":
                entry = values[0]
            elif kind == "device":
                record["device"] = values[0]
            elif kind == "rows":
                case = _case(wanted.pop(0))
                rows += [
                    {"kernel": case["kernel"], "problem": case["problem"], **r} for r in values[0]
                ]
                ended, entry, limit = ended + 1, "", time.monotonic() + LIMIT_S
                if out is not None:
                    out.write_text(json.dumps(record, indent=1) + "\n")
            else:
                return ended
    except (EOFError, TimeoutError, OSError) as error:
        if wanted:
            place = wanted[0]
            print(f"{label_of(_case(place))}: {type(error).__name__} at {entry!r}", flush=True)
            left_out.setdefault(place.name, []).append(entry)
        return ended
    finally:
        process.kill()
        process.join()


def _work_through(
    pipe: Any, places: Sequence[Path], left_out: Mapping[str, Sequence[str]], deadline: float
) -> None:
    """Compare workloads in this process; end it where the device is no longer usable."""
    try:
        torch.cuda.set_stream(torch.cuda.Stream())  # graphs are captured on it
        pipe.send(("device", torch.cuda.get_device_name()))
        clock = Clock()
        for place in places:
            if time.monotonic() > deadline:
                break
            begin = time.monotonic()
            case = _case(place)
            pipe.send(("entry", PREPARING))
            work = prepare(case["kernel"], case["problem"], "cuda")
            made = [{**m, "path": place / m["folder"]} for m in case["ours"]]
            found = compare(
                work, made, _open, clock, lambda *m: pipe.send(m), left_out.get(place.name, ())
            )
            flop = cases.work_flop(case["kernel"], case["problem"])
            for row in found:
                row["flop"] = flop
            print(
                f"{label_of(case)}: {summary(found)} [{time.monotonic() - begin:.1f} s]", flush=True
            )
            pipe.send(("rows", found))
            del work
            torch.cuda.empty_cache()
        pipe.send(("end",))
    except BaseException:  # noqa: BLE001  # a process of its own: the next one goes on
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _open(made: Mapping[str, Any]) -> Callable[..., Any]:
    from tilecore.artifact import Artifact
    from tilecore.runtime.cuda import CudaKernel

    return CudaKernel(Artifact.open(made["path"]))


def _case(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "case.json").read_text())
    return found


# --- warm: Triton's compiler ---------------------------------------------------------------------


def warm(folder: Path, jobs: int, seconds: float, is_offline: bool) -> None:
    """Compile Triton's kernels, which it keeps on disk; note what it cannot compile."""
    begin = time.monotonic()
    tasks = _tasks(folder)
    if is_offline:
        _without_device()
    context = multiprocessing.get_context("fork")
    following, found = context.Value("i", 0), context.Queue()
    workers = [
        context.Process(target=_compile_all, args=(tasks, following, found)) for _ in range(jobs)
    ]
    for worker in workers:
        worker.start()
    errors: dict[int, str] = {}
    while len(errors) < len(tasks):
        try:
            number, error, spent = found.get(timeout=max(0.1, begin + seconds - time.monotonic()))
        except queue.Empty:
            break
        errors[number] = error
        if spent > 10 or error:
            place, config = tasks[number][1][0]
            print(f"{place} {config}: {spent:.1f} s {error[:300]}", flush=True)
    for worker in workers:
        worker.kill()
        worker.join()
    failures = [
        {"place": place, "config": config, "error": error}
        for number, (_, places) in enumerate(tasks)
        if (error := errors.get(number, "not compiled in time"))
        for place, config in places
    ]
    (folder / WARMED).write_text(json.dumps(failures, indent=1) + "\n")
    bad, late = sum(map(bool, errors.values())), len(tasks) - len(errors)
    spent = time.monotonic() - begin
    print(f"{len(tasks)} configs, {bad} failed, {late} late, {spent:.0f} s", flush=True)


def _tasks(folder: Path) -> list[tuple[Sequence[Any], list[tuple[str, str]]]]:
    """Return what to compile, with the places and configs that it is for."""
    import gpu_peers_triton

    found: dict[Any, tuple[Sequence[Any], list[tuple[str, str]]]] = {}
    for place in sorted(p for p in folder.iterdir() if (p / "case.json").is_file()):
        case = _case(place)
        kernel, problem = case["kernel"], case["problem"]
        inputs = cases.CASES[kernel][0](problem, "meta")
        outs = cases.outputs(kernel, problem, inputs)
        for config, steps in gpu_peers_triton.launches(kernel, problem, inputs, outs):
            alike = tuple(step.signature() for step in steps)
            found.setdefault(alike, (steps, []))[1].append((place.name, config))
    return list(found.values())


def _compile_all(tasks: Sequence[Any], following: Any, found: Any) -> None:
    """Take tasks until there are no more; report their errors and how long each took."""
    while True:
        with following.get_lock():
            number, following.value = following.value, following.value + 1
        if number >= len(tasks):
            return
        begin, error = time.monotonic(), ""
        try:
            for step in tasks[number][0]:
                shared = step.compile().metadata.shared
                if shared > SHARED_BYTES:
                    error = f"{shared} bytes of shared memory"
        except Exception as failure:  # noqa: BLE001  # a config that fails is a result
            error = f"{type(failure).__name__}: {str(failure)[:400]}"
        found.put((number, error, time.monotonic() - begin))


def _without_device() -> None:
    """Let Triton compile for a GPU that is not here."""
    import triton
    from triton.backends.compiler import GPUTarget

    class Offline:
        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0 * device

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", 90, 32)

    triton.runtime.driver.set_active(Offline())


def _not_compiled(folder: Path) -> dict[str, list[str]]:
    """Return by place the labels of what Triton cannot compile."""
    found: dict[str, list[str]] = {}
    if (folder / WARMED).is_file():
        for failure in json.loads((folder / WARMED).read_text()):
            found.setdefault(failure["place"], []).append(f"triton {failure['config']}")
    return found


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    building, warming, running = (commands.add_parser(c) for c in ("build", "warm", "run"))
    rehearsing = commands.add_parser("rehearse")
    for command in (building, warming, running):
        command.add_argument("folder", type=Path)
    for command in (building, running, rehearsing):
        command.add_argument("--only", default="", help="a pattern that workloads are to match")
    building.add_argument("--target", default="h200")
    building.add_argument("--measured", type=Path, action="append", default=[])
    warming.add_argument("--jobs", type=int, default=16)
    warming.add_argument("--seconds", type=float, default=90.0)
    warming.add_argument("--offline", action="store_true", help="for sm_90, whatever is here")
    running.add_argument("--out", type=Path)
    running.add_argument("--seconds", type=float, default=150.0)
    given = parser.parse_args()
    if given.command == "build":
        from gpu_peers_build import build

        build(given.folder, given.target, given.measured, given.only)
    elif given.command == "warm":
        warm(given.folder, given.jobs, given.seconds, given.offline)
    elif given.command == "rehearse":
        os.environ["TRITON_INTERPRET"] = "1"
        from gpu_peers_build import rehearse

        rehearse(given.only)
    else:
        run(given.folder, given.out, given.only, given.seconds)


if __name__ == "__main__":
    main()
