"""A campaign for a GPU that is lent for half an hour, by default 60 shapes of gemm and attention.

    python benchmarks/gpu_campaign.py plan [--list NAME]          # the workloads, seconds, sizes
    python benchmarks/gpu_campaign.py build FOLDER [--list NAME] [--configs 300] [--target h200]
    python FOLDER/run.py --results $OUT/results.jsonl --time-limit 540    # on the device
    tilecore import results.jsonl

``build`` compiles, for an hour, candidates into packs of at most ``--limit-mib`` (what a call may
carry; the default folder ``.campaign/h200`` is ignored by git, as what is carried has to be). A
call on a lent machine is short: the next one goes on with ``--known`` and the results of those
before.

The list "models" has the shapes of language models of 7 to 70 billion parameters (projections and
MLPs, m tokens at a time), square ones and odd ones; attention of prompts, causal or not. "products"
is twelve of gemm and attention, "operators" two or three of every other library kernel, each once
before any comes twice: sizes of models of which the host has the reference in a second or two.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from db.migrate import open_database
from db.store import SqlStore
from recommender.campaign import choose
from recommender.hardware import HardwareProfile, load_profile
from recommender.workload import Workload
from tilecore import kernels
from tuner_service.cli import packing
from tuner_service.settings import load_settings
from workers.device_timing import DEVICE_SCREENING, SAMPLE_S, calls_per_sample

Shape = tuple[str, dict[str, Any]]
# (n, k) of projections and MLPs; m is how many tokens go through at a time.
LAYERS = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (8192, 8192), (57344, 8192))
TOKENS = (16, 128, 2048, 8192)
SQUARES = (1024, 2048, 4096, 8192)
ODD = ((1000, 1000, 1000), (3000, 2000, 1024), (511, 4096, 4096), (4096, 4104, 2056))
ATTENTION = (  # batch, heads, kv_heads, seq, dim
    (1, 32, 8, 2048, 128), (1, 32, 8, 8192, 128), (4, 32, 32, 2048, 128), (1, 64, 8, 4096, 128),
    (8, 16, 16, 1024, 64), (2, 32, 8, 4096, 64), (1, 16, 16, 16384, 64), (16, 12, 12, 512, 64),
)  # fmt: skip
PRODUCTS = (
    (4096, 4096, 4096, "float16"), (8192, 4096, 14336, "bfloat16"), (1000, 1000, 1000, "float16"),
    (4096, 4104, 2056, "bfloat16"), (2048, 28672, 4096, "bfloat16"), (16, 4096, 14336, "float16"),
)  # fmt: skip
DIM_64, DIM_128 = (2, 32, 8, 4096, 64), (1, 32, 8, 8192, 128)
ATTENDED = (  # sizes, causal, dtype
    (DIM_64, False, "float16"), (DIM_64, True, "bfloat16"), (DIM_128, False, "bfloat16"),
    (DIM_128, True, "float16"), (DIM_64, False, "bfloat16"), (DIM_64, True, "float16"),
)  # fmt: skip
OPERATORS = (
    "rms_norm m=8192 n=4096 dtype=bfloat16",
    "softmax m=8192 n=4096 dtype=float16",
    "layer_norm m=8192 n=1024 dtype=float16",
    "elementwise m=2048 n=14336 dtype=bfloat16",
    "reduction m=8192 n=4096 axis=n",
    "gemm_epilogue m=4096 n=4096 k=1024 dtype=float16 out_dtype=float16",
    "dequant_gemm m=16 n=4096 k=4096",
    "decode_attention batch=4 heads=32 kv_heads=8 seq_q=1 seq_kv=4096 dim=128 dtype=bfloat16",
    "grouped_gemm experts=8 m=4096 n=1792 k=4096 dtype=bfloat16 out_dtype=bfloat16",
    "conv2d batch=32 height=56 width=56 channels=64 filters=64 padding=1 dtype=float16"
    " out_dtype=float16",
    "scaled_gemm m=2048 n=4096 k=4096 dtype=float8_e4m3fn out_dtype=bfloat16",
    "split_k_gemm m=16 n=4096 k=14336 dtype=bfloat16 out_dtype=bfloat16 transpose_b=true",
    "batched_gemm batch=64 m=1024 n=1024 k=64 dtype=float16 out_dtype=float16 transpose_b=true",
    "linear_attention batch=1 heads=16 seq_len=2048 dim=64 dim_v=64 dtype=bfloat16",
    "attention_backward batch=1 heads=16 kv_heads=16 seq_q=2048 seq_kv=2048 dim=64 causal=true"
    " dtype=bfloat16",
    "softmax m=1024 n=32000",
    "rms_norm m=2048 n=8192 dtype=float16",
    "layer_norm m=4096 n=5120 dtype=bfloat16",
    "reduction m=8192 n=4096 axis=m",
    "elementwise m=4096 n=4096 dtype=float16 activation=gelu combine=add",
    "dequant_gemm m=1 n=14336 k=4096",
    "conv2d batch=32 height=14 width=14 channels=256 filters=256 padding=1 dtype=bfloat16"
    " out_dtype=bfloat16",
    "gemm_epilogue m=2048 n=11008 k=4096 dtype=bfloat16 out_dtype=bfloat16 transpose_b=true"
    " activation=silu bias=false",
    "attention_backward batch=1 heads=16 kv_heads=4 seq_q=2048 seq_kv=2048 dim=128 dtype=float16",
    "decode_attention batch=1 heads=32 kv_heads=8 seq_q=1 seq_kv=16384 dim=128 dtype=float16",
    "scaled_gemm m=2048 n=4096 k=4096 out_dtype=bfloat16",
    "grouped_gemm experts=16 m=2048 n=1408 k=2048 dtype=float16 out_dtype=float16",
    "split_k_gemm m=128 n=1024 k=16384 dtype=float16 out_dtype=float16",
    "linear_attention batch=1 heads=8 seq_len=2048 dim=128 dim_v=128 dtype=bfloat16",
    "batched_gemm batch=32 m=512 n=512 k=512 dtype=bfloat16 out_dtype=bfloat16",
    "dequant_gemm m=512 n=4096 k=4096",
    "reduction m=2048 n=32000 dtype=bfloat16 op=max",
    "conv2d batch=1 height=128 width=128 channels=256 filters=256 padding=1 dtype=float16"
    " out_dtype=float16",
)
# What a candidate takes beside its samples: loading, checking, capturing, the way to the child.
# An assumption: nothing of it was measured on a device.
OVERHEAD_S = 0.03
WORKLOAD_S = 1.0  # inputs, reference, finalists


def models() -> Iterator[Shape]:
    """Yield products and attention of language models, square and odd products."""
    for n, k in LAYERS:
        for m in TOKENS:
            dtype = "bfloat16" if (n, k) in LAYERS[::2] else "float16"
            yield "gemm", gemm(m, n, k, dtype) | {"transpose_b": True}
    for size in SQUARES:
        for dtype in ("float16", "bfloat16"):
            yield "gemm", gemm(size, size, size, dtype)
    for index, (m, n, k) in enumerate(ODD):
        yield "gemm", gemm(m, n, k, ("float16", "bfloat16")[index % 2])
    for index, sizes in enumerate(ATTENTION):
        for causal in (False, True):
            for dtype in ("float16", "bfloat16") if index < 4 else ("bfloat16",):
                yield "attention", attention(sizes, causal, dtype)


def products() -> Iterator[Shape]:
    """Yield a product and attention in turns."""
    for (m, n, k, dtype), attended in zip(PRODUCTS, ATTENDED, strict=True):
        turned = {"transpose_b": True} if n != m and n != k else {}
        yield "gemm", gemm(m, n, k, dtype) | turned
        yield "attention", attention(*attended)


def operators() -> Iterator[Shape]:
    """Yield the other library kernels."""
    for entry in OPERATORS:
        name, *fields = entry.split()
        given = dict(field.split("=") for field in fields)
        yield name, {k: _value(text) for k, text in given.items()}


def _value(text: str) -> int | bool | str:
    return text == "true" if text in ("true", "false") else int(text) if text.isdigit() else text


LISTS = {"models": models, "products": products, "operators": operators}


def attention(sizes: tuple[int, ...], causal: bool, dtype: str) -> dict[str, Any]:
    """Return the fields of attention."""
    batch, heads, kv_heads, seq, dim = sizes
    return {
        "batch": batch, "heads": heads, "kv_heads": kv_heads, "seq_q": seq, "seq_kv": seq,
        "dim": dim, "causal": causal, "dtype": dtype,
    }  # fmt: skip


def gemm(m: int, n: int, k: int, dtype: str) -> dict[str, Any]:
    """Return the fields of a product."""
    return {"m": m, "n": n, "k": k, "dtype": dtype, "out_dtype": dtype}


def line(shape: Shape) -> str:
    """Return a workload as a line of a tuning file."""
    name, fields = shape
    return " ".join([name, *(f"{k}={str(v).lower()}" for k, v in fields.items())])


def seconds(shape: Shape, hardware: HardwareProfile, store: SqlStore, configs: int) -> float:
    """Return the time that a workload's candidates need by the analytic model."""
    name, fields = shape
    definition = kernels.get(name)
    problem = definition.parse_problem(fields)
    chosen = choose(Workload.of(name, problem), definition, hardware, store, configs)
    calls = calls_per_sample(
        hardware, definition.work_flop(problem), definition.traffic_bytes(problem)
    )
    samples = DEVICE_SCREENING.max_samples + 3  # warm calls
    timed = sum(samples * max(calls * c.predicted_s, SAMPLE_S) for c in chosen)
    return WORKLOAD_S + len(chosen) * OVERHEAD_S + timed


def plan(shapes: Sequence[Shape], store: SqlStore, target: str, configs: int) -> None:
    """Print every workload with the seconds that it may need."""
    hardware, total_s = load_profile(target), 0.0
    for shape in shapes:
        needed_s = seconds(shape, hardware, store, configs)
        total_s += needed_s
        print(f"{needed_s:6.1f} s  {line(shape)}")
    print(f"{len(shapes)} workloads, {configs} configs each: {total_s / 60:.1f} min by the model")


def build(shapes: Sequence[Shape], folder: Path, target: str, configs: int, limit_mib: int) -> None:
    """Write the packs."""
    settings = load_settings()
    folder.parent.mkdir(parents=True, exist_ok=True)
    listed = folder.with_name(f"{folder.name}.txt")
    listed.write_text("".join(f"{line(s)}\n" for s in shapes))
    packing.pack(
        settings, folder, "", {}, listed, target=target, configs=configs, seed=0,
        limit_bytes=limit_mib << 20,
    )  # fmt: skip


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=("plan", "build"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path(".campaign/h200"))
    parser.add_argument("--list", choices=LISTS, default="models")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--configs", type=int, default=300)
    parser.add_argument("--limit-mib", type=int, default=40)
    parser.add_argument("--only", type=int, action="append", default=[], help="workload by number")
    args = parser.parse_args()
    shapes = [s for i, s in enumerate(LISTS[args.list]()) if not args.only or i in args.only]
    if args.command == "build":
        build(shapes, args.folder, args.target, args.configs, args.limit_mib)
    else:
        store = SqlStore(open_database(load_settings().url))
        plan(shapes, store, args.target, args.configs)


if __name__ == "__main__":
    main()
