"""What gpu_peers.py does without a GPU: it builds our kernels, and rehearses small problems."""

from __future__ import annotations

import gzip
import json
import math
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gpu_peers_cases as cases

MLA = (
    (1, 64, 2, True), (1, 64, 2, False), (1, 32, 4, False), (1, 32, 3, True), (1, 64, 1, True),
)  # fmt: skip
DYNAMIC_TILES = ((128, 256, 64, 3, 256), (128, 128, 64, 4, 256), (256, 128, 64, 3, 256))


# Configs that peers have, beside the recommender's and the measured ones.
FURTHER: Mapping[str, Sequence[dict[str, Any]]] = {
    "scaled_gemm": [
        {"block_M": 128, "block_N": 256, "block_K": 128, "num_stages": n, "threads": 256}
        for n in (3, 4)
    ],
    "decode_attention": [
        {"splits": s, "block_M": 16, "block_N": n, "num_stages": 3, "threads": 128}
        for s, n in ((16, 64), (32, 64), (4, 64), (16, 128))
    ],
    "dequant_gemm": [
        {
            "block_M": 128,
            "block_N": 128,
            "block_K": 64,
            "num_stages": 3,
            "threads": 256,
            "splits": 1,
        }
    ],
    "grouped_gemm": [
        {"block_M": 128, "block_N": 256, "block_K": 64, "num_stages": 3, "threads": 256}
    ],
    "linear_attention": [
        {"chunk": c, "block_DV": v, "num_stages": n, "threads": t}
        for c, v, n, t in (
            (128, 32, 3, 128),
            (128, 64, 2, 256),
            (128, 64, 3, 256),
            (64, 32, 4, 128),
        )
    ],
    "attention_backward": [
        {"block_M": 64, "block_N": 128, "num_stages": n, "threads": 256} for n in (2, 3)
    ],
    "conv2d": [
        {"block_M": m, "block_N": 128, "block_K": 64, "num_stages": n, "threads": 256}
        for m, n in ((128, 5), (128, 4), (256, 4), (256, 3))
    ],
    "rms_norm": [{"block_M": 1, "threads": 128}, {"block_M": 1, "threads": 512}],
    "layer_norm": [{"block_M": 1, "threads": 128}, {"block_M": 1, "threads": 512}],
    "softmax": [{"block_M": 1, "threads": 256}, {"block_M": 1, "threads": 512}],
}


def build(folder: Path, target: str, measured: Sequence[Path], only: str) -> None:
    """Compile our candidates into ``folder``; what the device does not need is left out."""
    from gpu_peers_compare import label_of

    from tilecore.artifact import ArtifactStore
    from tilecore.compiler import compile
    from tilecore.target import parse_target

    known = list(_measured(measured))
    for number, (name, fields, count) in enumerate(cases.shapes()):
        place, problem = folder / f"{number:02d}", parsed(name, fields)
        case: dict[str, Any] = {"kernel": name, "problem": problem, "ours": []}
        if not re.search(only, label_of(case)) or (place / "case.json").is_file():
            continue
        begin = time.monotonic()
        for participant, config, func in programs(name, problem, count, known, target):
            with tempfile.TemporaryDirectory() as store:
                try:
                    artifact = compile(func, parse_target(target), store=ArtifactStore(Path(store)))
                except Exception as error:  # noqa: BLE001  # a config that does not build
                    print(f"  {participant} {config}: {str(error).splitlines()[0]}", flush=True)
                    continue
                made = place / f"{len(case['ours'])}"
                made.mkdir(parents=True)
                for file in (artifact.path / "manifest.json", artifact.library):
                    shutil.copy(file, made)
                print(f"  {participant} {config}: {_code(artifact)}", flush=True)
            case["ours"].append({"participant": participant, "config": config, "folder": made.name})
        (place / "case.json").write_text(json.dumps(case, indent=1))
        spent = time.monotonic() - begin
        print(f"{place} {label_of(case)}: {len(case['ours'])} configs, {spent:.0f} s", flush=True)


def _code(artifact: Any) -> str:
    """Return what machine code an artifact has: registers, spills, products and copies."""
    from tilecore.codegen.cubin import read_features

    found, code = dict(artifact.manifest.resources), artifact.library.read_bytes()
    kernels = read_features(code, "sm_90a").values()
    counted = {
        name: n for name in ("HGMMA", "QGMMA", "HMMA", "UTMALDG", "LDGSTS")
        if (n := sum(k.opcodes.get(name, 0) for k in kernels))
    }  # fmt: skip
    shown = [f"{found.get(k)} {k}" for k in ("registers", "spill_bytes", "shared_bytes")]
    return ", ".join(shown) + f", {counted}"


def parsed(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a problem with its defaults."""
    from tilecore import kernels

    if name in ("mla_decode", "dynamic_gemm"):
        return dict(fields)
    return dict(kernels.get(name).parse_problem(fields))


def programs(
    name: str, problem: Mapping[str, Any], count: int, known: Sequence[Mapping[str, Any]],
    target: str,
) -> Iterator[tuple[str, dict[str, Any], Any]]:  # fmt: skip
    """Yield (participant, config, program) of ours for a workload."""
    from tilecore import kernels

    if name == "mla_decode":
        yield from _latent(problem, count)
    elif name == "dynamic_gemm":
        yield from _products_of_any_size(problem, count)
    else:
        definition = kernels.get(name).on("cuda")
        for config in chosen(name, problem, count, known, target):
            knobs = {k.name: k.default for k in definition.knobs} | config
            yield "tilecore", config, definition.program(problem, knobs)


def _latent(
    problem: Mapping[str, Any], count: int
) -> Iterator[tuple[str, dict[str, Any], Any]]:  # fmt: skip
    import gpu_peers_mla
    from gpu_peers_programs import mla_decode

    few = 1 if int(problem["batch"]) >= 64 else 4  # two blocks a query: half of 128 fill the device
    sizes = [problem[k] for k in ("batch", "heads", "seq_kv", "dim", "pe", "dtype")]
    choices = [(s * few, *rest) for s, *rest in MLA]
    choices.insert(3, (2 * few, 64, 2, True))
    for splits, block, stages, through_shared in choices[:count]:
        config = {
            "splits": splits, "block_H": 64, "block_N": block, "num_stages": stages,
            "threads": 256, "through_shared": through_shared,
        }  # fmt: skip
        yield "tilecore", config, mla_decode(*sizes, **config)
    for is_chained in (False, True) if few > 1 else (False,):
        config = {"splits": few, "tiles": "pairs", "is_chained": is_chained}
        func = gpu_peers_mla.mla_decode(*sizes, splits=few, is_chained=is_chained)
        yield "tilecore", config, func


def _products_of_any_size(
    problem: Mapping[str, Any], count: int
) -> Iterator[tuple[str, dict[str, Any], Any]]:
    from gpu_peers_programs import gemm

    import tilecore.language as T

    sizes = [problem[k] for k in "mnk"]
    symbols = [T.dynamic(k) for k in "MNK"]
    kinds = (
        ("tilecore", sizes), ("tilecore_dynamic_m", [symbols[0], *sizes[1:]]),
        ("tilecore_dynamic_mnk", symbols),
    )  # fmt: skip
    for tile in DYNAMIC_TILES[:count]:
        config = dict(
            zip(("block_M", "block_N", "block_K", "num_stages", "threads"), tile, strict=True)
        )
        for participant, given in kinds:
            yield participant, config, gemm(*given, problem["dtype"], **config)


def _measured(paths: Sequence[Path]) -> Iterator[Mapping[str, Any]]:
    for path in paths:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        for line in text.splitlines():
            found = json.loads(line)
            if "time_s" in found or "times_s" in found:
                yield found


def chosen(
    name: str, problem: Mapping[str, Any], count: int, known: Sequence[Mapping[str, Any]],
    target: str,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the recommender's configs and the fastest measured ones, one of each in turn."""
    fastest, distance = best_of(known, name, problem)
    recommended = _recommended(name, problem, count, target)
    if distance > 0:  # of another shape: a few
        fastest = fastest[: count // 2]
    found: list[dict[str, Any]] = []
    for i in range(max(len(fastest), len(recommended))):
        for configs in (recommended, fastest):
            if i < len(configs) and configs[i] not in found:
                found.append(configs[i])
    further = FURTHER.get(name, ()) if name != "dequant_gemm" or problem["m"] > 64 else ()
    return found[:count] + [c for c in further if c not in found[:count]]


def best_of(
    known: Sequence[Mapping[str, Any]], name: str, problem: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], float]:
    """Return the fastest configs measured of the workload most alike, and how far off that is."""

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
        return [], math.inf
    nearest = min(map(distance, rows))
    alike = sorted((r for r in rows if distance(r) == nearest), key=lambda r: min(r["times_s"]))
    found: list[dict[str, Any]] = []
    for row in alike:
        config = dict(row["config"])
        if config not in found:
            found.append(config)
    return found, nearest


def _recommended(
    name: str, problem: Mapping[str, Any], count: int, target: str
) -> list[dict[str, Any]]:
    from db.migrate import open_database
    from db.store import SqlStore
    from recommender.campaign import choose
    from recommender.hardware import load_profile
    from recommender.workload import Workload
    from tilecore import kernels

    with tempfile.TemporaryDirectory() as folder:  # nothing is measured there
        store = SqlStore(open_database(f"sqlite:///{folder}/empty.sqlite"))
        found = choose(
            Workload.of(name, problem), kernels.get(name), load_profile(target), store, count
        )
    return [dict(c.config) for c in found]


# --- rehearse: without a GPU ---------------------------------------------------------------------


def rehearse(only: str) -> None:
    """Run small problems: ours on the emulator, Triton's by its interpreter, torch's on the CPU."""
    from gpu_peers_compare import HostClock, compare, label_of, prepare, summary

    for kernel, fields in SMALL.items():
        case: dict[str, Any] = {"kernel": kernel, "problem": parsed(kernel, fields)}
        if not re.search(only, label_of(case)):
            continue
        work = prepare(kernel, case["problem"], "cpu")
        made = [
            {"participant": participant, "config": config, "func": func}
            for participant, config, func in programs(kernel, case["problem"], 2, [], "h200")
        ]
        rows = compare(work, made, _emulated, HostClock(), lambda *_: None, ())
        for row in rows:
            told = row.get("error") or f"{row['relative_error']:.1e}"
            print(f"    {row['participant']} {row['config']}: {told}")
        print(f"{label_of(case)}: {summary(rows)}", flush=True)


def _emulated(made: Mapping[str, Any]) -> Callable[..., Any]:
    from tilecore.artifact import ArtifactStore
    from tilecore.compiler import compile
    from tilecore.emulator import EmulatedDriver
    from tilecore.gpu_compiler import lower_gpu
    from tilecore.gpu_target import GpuTarget
    from tilecore.runtime.cuda import CudaKernel
    from tilecore.target import parse_target

    target = parse_target("h200")
    assert isinstance(target, GpuTarget)
    with tempfile.TemporaryDirectory() as store:
        artifact = compile(made["func"], target, store=ArtifactStore(Path(store)))
        return CudaKernel(artifact, EmulatedDriver(lower_gpu(made["func"], target)[2]))


_FLAT = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_q": 256, "seq_kv": 256, "dim": 64}
_HALF = {"dtype": "float16", "out_dtype": "float16"}
SMALL: Mapping[str, dict[str, Any]] = {
    "mla_decode": {
        "batch": 2, "heads": 64, "dim": 128, "pe": 64, "seq_kv": 1024, "dtype": "bfloat16",
    },
    "linear_attention": {
        "batch": 1, "heads": 2, "seq_len": 384, "dim": 64, "dim_v": 64, "dtype": "bfloat16",
    },
    "attention_backward": {**_FLAT, "kv_heads": 4, "causal": True, "dtype": "bfloat16"},
    "attention": {**_FLAT, "causal": True, "dtype": "float16"},
    "scaled_gemm": {
        "m": 192, "n": 256, "k": 256, "dtype": "float8_e4m3fn", "out_dtype": "bfloat16",
    },
    "dequant_gemm": {"m": 3, "n": 256, "k": 512, "dtype": "bfloat16"},
    "dynamic_gemm": {"m": 200, "n": 256, "k": 192, "dtype": "float16"},
    "gemm": {"m": 136, "n": 264, "k": 200, **_HALF},
    "grouped_gemm": {"experts": 4, "m": 256, "n": 256, "k": 128, "transpose_b": True, **_HALF},
    "decode_attention": {**_FLAT, "heads": 8, "seq_q": 1, "seq_kv": 2048, "dtype": "float16"},
    "batched_gemm": {"batch": 2, "m": 256, "n": 256, "k": 128, **_HALF},
    "rms_norm": {"m": 32, "n": 300, "dtype": "bfloat16"},
    "softmax": {"m": 32, "n": 300, "dtype": "bfloat16"},
    "layer_norm": {"m": 32, "n": 300, "dtype": "bfloat16"},
    "conv2d": {
        "batch": 1, "height": 10, "width": 9, "channels": 32, "filters": 64, "padding": 1, **_HALF,
    },
}  # fmt: skip
