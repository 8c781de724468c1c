"""Our GPU kernels beside torch (cuBLAS, SDPA), Triton and TileLang: A B C D in turns, one run.

    python benchmarks/gpu_peers.py build FOLDER [--measured FILE.jsonl]    # no GPU
    python benchmarks/gpu_peers.py warm FOLDER --part I --parts N          # on the GPU, N at once
    python benchmarks/gpu_peers.py run FOLDER [--out FILE] [--only REGEX]  # on the GPU

``build`` compiles some configs of each of our kernels: the fastest of measurements
(``tilecore import`` reads such files), else the recommender's. ``run`` checks every participant
against a reference in float64, takes the fastest of each one's configs by a few calls, and times
these in turns; before each call a buffer larger than L2 is written. Needs torch, Triton and
cuda-bindings; TileLang takes part where it is installed.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

Call = Callable[[], Any]
Shape = tuple[str, dict[str, Any]]
ROUNDS, TRIES, WARM_UP = 40, 8, 3
COLD_BYTES = 256 << 20
TOP = 4  # of our configs per workload
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 2e-2, torch.float32: 1e-3}


def shapes() -> Iterator[Shape]:
    """Yield what is compared."""
    for m, n, k, dtype in (
        (4096, 4096, 4096, "float16"), (8192, 8192, 8192, "float16"),
        (8192, 8192, 8192, "bfloat16"), (2048, 28672, 4096, "bfloat16"),
        (8192, 4096, 14336, "bfloat16"), (2048, 2048, 2048, "bfloat16"),
        (16, 28672, 4096, "bfloat16"),
    ):  # fmt: skip
        yield "gemm", {"m": m, "n": n, "k": k, "dtype": dtype, "out_dtype": dtype}
    for batch, heads, kv_heads, seq, dim in (
        (1, 32, 8, 8192, 128), (4, 32, 32, 2048, 128), (2, 32, 8, 4096, 64), (4, 16, 16, 4096, 128),
    ):  # fmt: skip
        for causal in (False, True):
            yield "attention", {
                "batch": batch, "heads": heads, "kv_heads": kv_heads, "seq_q": seq, "seq_kv": seq,
                "dim": dim, "causal": causal, "dtype": "float16",
            }  # fmt: skip


# --- build: without a GPU ------------------------------------------------------------------------


def build(folder: Path, target: str, measured: Sequence[Path]) -> None:
    """Compile our candidates into ``folder``."""
    from recommender.hardware import load_profile
    from tilecore import kernels
    from tilecore.artifact import ArtifactStore
    from tilecore.compiler import compile
    from tilecore.target import parse_target

    known = list(_measured(measured))
    for number, (name, fields) in enumerate(shapes()):
        place = folder / f"{number:02d}"
        definition = kernels.get(name).on("cuda")
        problem = definition.parse_problem(fields)
        configs = best_of(known, name, problem) or _recommended(name, problem, load_profile(target))
        made = []
        for i, config in enumerate(configs[:TOP]):
            func = definition.program(
                problem, {k.name: k.default for k in definition.knobs} | config
            )
            artifact = compile(func, parse_target(target), store=ArtifactStore(place / f"store{i}"))
            artifact.path.rename(place / f"artifact{i}")
            made.append(config)
        case = {"kernel": name, "problem": problem, "configs": made}
        (place / "case.json").write_text(json.dumps(case, indent=1))
        print(f"{place} {name} {fields}: {len(made)} configs", flush=True)


def _measured(paths: Sequence[Path]) -> Iterator[Mapping[str, Any]]:
    for path in paths:
        for line in path.read_text().splitlines():
            found = json.loads(line)
            if "time_s" in found or "times_s" in found:
                yield found


def best_of(
    known: Sequence[Mapping[str, Any]], name: str, problem: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the fastest configs that were measured of a workload, or of the most alike one."""

    def distance(row: Mapping[str, Any]) -> float:
        other = dict(row["workload"]["problem"])
        total = 0.0
        for key, value in problem.items():
            seen = other.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and isinstance(seen, int):
                total += abs(math.log(max(value, 1) / max(seen, 1)))
            elif seen != value:
                total += 0.0 if key.endswith("dtype") else 3.0
        return total

    rows = [r for r in known if r["workload"]["kernel"] == name and r["status"] == "OK"]
    if not rows:
        return []
    nearest = min(map(distance, rows))
    alike = sorted((r for r in rows if distance(r) == nearest), key=lambda r: min(r["times_s"]))
    found: list[dict[str, Any]] = []
    for row in alike:
        config = dict(row["config"])
        if config not in found:
            found.append(config)
    return found


def _recommended(name: str, problem: Mapping[str, Any], hardware: Any) -> list[dict[str, Any]]:
    from db.migrate import open_database
    from db.store import SqlStore
    from recommender.campaign import choose
    from recommender.workload import Workload
    from tilecore import kernels

    with tempfile.TemporaryDirectory() as folder:  # nothing is measured there
        store = SqlStore(open_database(f"sqlite:///{folder}/empty.sqlite"))
        chosen = choose(Workload.of(name, problem), kernels.get(name), hardware, store, TOP)
    return [dict(c.config) for c in chosen]


# --- run: on the GPU ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """One way to compute a workload: writes ``out`` when called."""

    participant: str
    config: str
    call: Call
    out: Any


class Clock:
    """Times calls by events, the caches cold."""

    def __init__(self) -> None:
        self._cold = torch.empty(COLD_BYTES, dtype=torch.uint8, device="cuda")

    def ms(self, call: Call) -> float:
        """Return the milliseconds of one call."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._cold.zero_()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))


def run(folder: Path, out: Path | None, only: str) -> None:
    """Compare all workloads of a folder."""
    clock, rows = Clock(), []
    for place in sorted(p for p in folder.iterdir() if (p / "case.json").is_file()):
        case = json.loads((place / "case.json").read_text())
        label = f"{case['kernel']} {json.dumps(case['problem'])}"
        if not re.search(only, label):
            continue
        try:
            found = compare(place, case, clock)
        except Exception as error:  # noqa: BLE001  # the others still count
            print(f"{label}: {str(error)[:300]}", flush=True)
            continue
        rows += [{"kernel": case["kernel"], "problem": case["problem"], **row} for row in found]
        shown = "  ".join(
            f"{r['participant']} {r['ms']:.4f} ms {r['flop'] / r['ms'] / 1e9:.0f} TF"
            for r in found if r.get("is_best")
        )  # fmt: skip
        print(f"{case['kernel']} {_short(case['problem'])}: {shown}", flush=True)
        if out is not None:
            record = {
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "rows": rows,
            }
            out.write_text(json.dumps(record, indent=1) + "\n")


def warm(folder: Path, part: int, parts: int) -> None:
    """Compile a share of the peers' kernels, which they keep."""
    from tilecore import kernels

    work: dict[Any, tuple[Any, Mapping[str, Any]]] = {}
    for place in sorted(p for p in folder.iterdir() if (p / "case.json").is_file()):
        case = json.loads((place / "case.json").read_text())
        problem = case["problem"]
        _, triton, tilelang = PEERS[case["kernel"]]
        kinds = tuple(problem.get(k) for k in ("dtype", "dim", "causal", "transpose_b"))
        work.setdefault((case["kernel"], kinds), (triton, case))
        work[str(place)] = tilelang, case
    for number, (make, case) in enumerate(work.values()):
        if number % parts != part:
            continue
        counterpart = kernels.get(case["kernel"]).on_device
        assert counterpart is not None
        inputs = counterpart.inputs(case["problem"], torch.Generator("cuda").manual_seed(7))
        try:
            for entry in make(case["problem"], inputs):
                entry.call()
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001  # run() says it again
            print(f"{case['kernel']}: {type(error).__name__}: {str(error)[:300]}", flush=True)


def _short(problem: Mapping[str, Any]) -> str:
    kept = {
        k: v for k, v in problem.items() if k not in ("accum_dtype", "out_dtype") and v is not False
    }
    return " ".join(f"{k}={v}" for k, v in kept.items())


def compare(place: Path, case: Mapping[str, Any], clock: Clock) -> list[dict[str, Any]]:
    """Return a row per candidate; the fastest of each participant timed in turns."""
    from tilecore import kernels

    definition = kernels.get(case["kernel"]).on("cuda")
    problem = case["problem"]
    counterpart = definition.on_device
    assert counterpart is not None
    inputs = counterpart.inputs(problem, torch.Generator("cuda").manual_seed(7))
    expected = counterpart.reference(problem, inputs)[0]
    makers: list[Callable[[], Iterator[Entry]]] = [
        lambda: ours(place, case, inputs, expected),
        lambda: PEERS[case["kernel"]][0](problem, inputs),
        lambda: PEERS[case["kernel"]][1](problem, inputs),
        lambda: PEERS[case["kernel"]][2](problem, inputs),
    ]
    rows: list[dict[str, Any]] = []
    best: dict[str, tuple[float, Entry, dict[str, Any]]] = {}
    for make in makers:
        entries = make()
        while True:
            try:
                entry = next(entries, None)
            except Exception as error:  # noqa: BLE001  # a participant that fails is a result
                print(f"  {type(error).__name__}: {str(error)[:300]}", flush=True)
                break
            if entry is None:
                break
            try:
                row = _try(entry, expected, clock)
            except Exception as error:  # noqa: BLE001
                print(f"  {entry.participant} {entry.config}: {str(error)[:300]}", flush=True)
                continue
            row["flop"] = definition.work_flop(problem)
            rows.append(row)
            at = best.get(entry.participant)
            if row["is_right"] and (at is None or row["tried_ms"] < at[0]):
                best[entry.participant] = row["tried_ms"], entry, row
    times: dict[str, list[float]] = {name: [] for name in best}
    for _ in range(ROUNDS):
        for name, (_, entry, _) in best.items():
            times[name].append(clock.ms(entry.call))
    for name, (_, _, row) in best.items():
        row |= {"is_best": True, "ms": statistics.median(times[name]), "all_ms": times[name]}
    return rows


def _try(entry: Entry, expected: Any, clock: Clock) -> dict[str, Any]:
    """Check a candidate and time some calls."""
    if entry.out.is_floating_point():
        entry.out.fill_(math.nan)
    entry.call()
    torch.cuda.synchronize()
    error = float((entry.out.double() - expected).abs().max() / expected.abs().max())
    for _ in range(WARM_UP):
        entry.call()
    tried = statistics.median(clock.ms(entry.call) for _ in range(TRIES))
    return {
        "participant": entry.participant, "config": entry.config, "relative_error": error,
        "is_right": error <= TOLERANCE[entry.out.dtype], "tried_ms": tried,
    }  # fmt: skip


def ours(
    place: Path, case: Mapping[str, Any], inputs: Sequence[Any], expected: Any
) -> Iterator[Entry]:
    """Yield our kernels."""
    from tilecore.artifact import Artifact
    from tilecore.runtime.cuda import CudaKernel

    out = torch.empty(expected.shape, dtype=inputs[0].dtype, device="cuda")
    for i, config in enumerate(case["configs"]):
        kernel = CudaKernel(Artifact.open(place / f"artifact{i}"))
        yield Entry("tilecore", json.dumps(config), _bound(kernel, *inputs, out), out)


def _bound(function: Callable[..., Any], *arguments: Any) -> Call:
    return lambda: function(*arguments)


def gemm_of_torch(problem: Mapping[str, Any], inputs: Sequence[Any]) -> Iterator[Entry]:
    """Yield cuBLAS."""
    a, b = inputs
    out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device="cuda")
    yield Entry("torch", "torch.mm", lambda: torch.mm(a, b, out=out), out)


def attention_of_torch(problem: Mapping[str, Any], inputs: Sequence[Any]) -> Iterator[Entry]:
    """Yield the backends of torch's attention."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = inputs
    out = torch.empty_like(q)
    attend = torch.nn.functional.scaled_dot_product_attention
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):

        def call(backend: Any = backend) -> None:
            with sdpa_kernel([backend]):
                out.set_(attend(
                    q, k, v, is_causal=bool(problem["causal"]), enable_gqa=k.shape[1] != q.shape[1]
                ))  # fmt: skip

        yield Entry("torch", backend.name, call, out)


def gemm_of_triton(problem: Mapping[str, Any], inputs: Sequence[Any]) -> Iterator[Entry]:
    """Yield Triton's products by tensor descriptors."""
    import gpu_peers_triton

    a, b = inputs
    out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device="cuda")
    for config in gpu_peers_triton.GEMM:
        if config[0] <= max(64, a.shape[0]):
            yield Entry("triton", str(config), gpu_peers_triton.gemm(a, b, out, config), out)


def attention_of_triton(problem: Mapping[str, Any], inputs: Sequence[Any]) -> Iterator[Entry]:
    """Yield Triton's flash attention."""
    import gpu_peers_triton

    out = torch.empty_like(inputs[0])
    for config in gpu_peers_triton.ATTENTION:
        call = gpu_peers_triton.attention(*inputs, out, bool(problem["causal"]), config)
        yield Entry("triton", str(config), call, out)


def gemm_of_tilelang(problem: Mapping[str, Any], inputs: Sequence[Any]) -> Iterator[Entry]:
    """Yield TileLang's own example with configs for Hopper."""
    import tilelang
    from gpu_peers_tilelang import gemm

    a, b = inputs
    out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device="cuda")
    rows = int(problem["m"])
    configs = [(128, 256, 64, 3, 256), (128, 256, 64, 4, 256), (256, 128, 64, 3, 256)]
    if rows < 128:
        configs = [(64, 128, 64, 4, 128), (64, 64, 128, 4, 128)]
    for config in configs:
        program = gemm(rows, int(problem["n"]), int(problem["k"]), str(problem["dtype"]), *config)
        kernel = tilelang.compile(program, target="cuda")
        yield Entry("tilelang", str(config), _bound(kernel, a, b, out), out)


def attention_of_tilelang(problem: Mapping[str, Any], inputs: Sequence[Any]) -> Iterator[Entry]:
    """Yield TileLang's example of attention."""
    import tilelang
    from gpu_peers_tilelang import attention

    q, k, v = inputs
    out = torch.empty_like(q)
    B, H, S, D = q.shape
    for config in ((128, 128, 2, 256), (128, 128, 1, 256), (128, 64, 2, 256)):
        program = attention(B, H, k.shape[1], S, D, bool(problem["causal"]), *config)
        kernel = tilelang.compile(program, target="cuda")
        yield Entry("tilelang", str(config), _bound(kernel, q, k, v, out), out)


PEERS: Mapping[str, tuple[Callable[..., Iterator[Entry]], ...]] = {
    "gemm": (gemm_of_torch, gemm_of_triton, gemm_of_tilelang),
    "attention": (attention_of_torch, attention_of_triton, attention_of_tilelang),
}


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build")
    building.add_argument("folder", type=Path)
    building.add_argument("--target", default="h200")
    building.add_argument("--measured", type=Path, action="append", default=[])
    warming = commands.add_parser("warm")
    warming.add_argument("folder", type=Path)
    warming.add_argument("--part", type=int, default=0)
    warming.add_argument("--parts", type=int, default=1)
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--out", type=Path)
    running.add_argument("--only", default="")
    given = parser.parse_args()
    if given.command == "build":
        build(given.folder, given.target, given.measured)
    elif given.command == "warm":
        warm(given.folder, given.part, given.parts)
    else:
        run(given.folder, given.out, given.only)


if __name__ == "__main__":
    main()
