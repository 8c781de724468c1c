"""CPU time of recommendations for every kernel of the library, on CPUs and GPUs.

    OMP_NUM_THREADS=1 python benchmarks/kernel_answers.py [KERNEL ...] [--devices host,h100-sxm] \
        [--count 60] [--json FILE] [--bodies FILE] [--same-as FILE]

Each question is about another length of sequence, number of rows or images, as a service is asked
by programs of a model whose other sizes stay. Worked out in this process as answering processes do
(``answering.work_out_undoubted``, ``top_k`` 3), on an SQLite file in a temporary folder:

- cold: nothing was measured of the kernel.
- measured: three configs were confirmed for the question.

Prints median and 99th percentile of the time of this thread's processor, in milliseconds; HTTP and
the way to an answering process are not in them (``service_load.py``).

``--bodies FILE`` writes the answers instead, before and after some of the questions were measured;
``--same-as FILE`` says how many are byte for byte those of a file, which another version wrote.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from service_load import apart, confirmed, write

from db.snapshot import Snapshot
from tilecore import kernels
from tilecore.tile_config import TileConfig
from tuner_service.answers.answering import work_out_undoubted
from tuner_service.answers.memory import Answer
from tuner_service.questions import understand
from tuner_service.schemas import RecommendationRequest
from tuner_service.settings import load_settings
from tuner_service.wiring import open_store

FIRST = 10  # questions that load what all need
TOP_K = 3
HEADS = {"batch": 4, "heads": 32, "kv_heads": 8, "dim": 128}
LAYER = {"n": 4096, "k": 4096}
# Of each kernel the sizes that questions differ in, and those that stay.
PROBLEMS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "attention": (("seq_q", "seq_kv"), {**HEADS, "causal": True}),
    "attention_backward": (("seq_q", "seq_kv"), {**HEADS, "causal": True}),
    "batched_gemm": (("m",), {"batch": 16, "n": 1024, "k": 128}),
    "conv2d": (("batch",), {"height": 56, "width": 56, "channels": 64, "filters": 128}),
    "decode_attention": (("seq_kv",), {**HEADS, "seq_q": 1}),
    "dequant_gemm": (("m",), LAYER),
    "elementwise": (("m",), {"n": 4096}),
    "gemm": (("m",), LAYER),
    "gemm_epilogue": (("m",), LAYER),
    "grouped_gemm": (("m",), {"experts": 8, "n": 4096, "k": 1024}),
    "layer_norm": (("m",), {"n": 4096}),
    "linear_attention": (("seq_len",), {"batch": 4, "heads": 32, "dim": 128, "dim_v": 128}),
    "reduction": (("m",), {"n": 4096}),
    "rms_norm": (("m",), {"n": 4096}),
    "scaled_gemm": (("m",), LAYER),
    "softmax": (("m",), {"n": 4096}),
    "split_k_gemm": (("m",), {"n": 256, "k": 16384}),
}


def problem_of(name: str, size: int) -> dict[str, Any]:
    """Return a problem of a kernel, in 16-bit floats where the kernel has them."""
    varied, fixed = PROBLEMS[name]
    dtypes = next(f for f in kernels.get(name).fields if f.name == "dtype").choices
    dtype = {"dtype": "bfloat16"} if "bfloat16" in dtypes else {}
    return {**dtype, **fixed, **dict.fromkeys(varied, size)}


def answer(known: Snapshot, name: str, device: str | None, size: int) -> Answer:
    """Return the answer to the question about a size."""
    request = RecommendationRequest(
        kernel=name, problem=problem_of(name, size), hardware=device, top_k=TOP_K
    )
    found = work_out_undoubted(known, request)
    assert found is not None
    return found


def ask(known: Snapshot, name: str, device: str | None, sizes: Sequence[int]) -> dict[str, float]:
    """Return the times of answers in ms, and how many were of what was measured."""
    times_s, measured = [], 0
    for size in sizes:
        began = time.thread_time()
        found = answer(known, name, device, size)
        times_s.append(time.thread_time() - began)
        measured += found.source == "measured"
    times_ms = 1e3 * np.array(times_s[FIRST:])
    return {
        "p50_ms": float(np.median(times_ms)), "p99_ms": float(np.quantile(times_ms, 0.99)),
        "measured": measured,
    }  # fmt: skip


def confirm(
    folder: str, name: str, device: str | None, sizes: Sequence[int], most: int = TOP_K
) -> None:
    """Store measurements of the first choices for every size in the database of a folder."""
    store = open_store(load_settings(data_dir=folder))
    known, found = Snapshot(store), []
    for size in sizes:
        told = json.loads(answer(known, name, device, size).body)["recommendations"][:most]
        question = understand(store, name, problem_of(name, size), hardware=device)
        found += confirmed(question, [TileConfig.of(r["config"]) for r in told])
    store.add_all(found)


def bodies(name: str, device: str | None, sizes: Sequence[int]) -> list[str]:
    """Return the JSON of answers: before anything was measured, after one config, after several."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(load_settings(data_dir=folder))
        found = [answer(Snapshot(store), name, device, size).body for size in sizes]
        for part, most in ((sizes[::3], 1), (sizes[1::3], TOP_K)):
            confirm(folder, name, device, part, most)
        known = Snapshot(store)
        found += [answer(known, name, device, size).body for size in sizes]
    return [body.decode() for body in found]


def compare(found: Mapping[str, list[str]], path: Path) -> None:
    """Print how many answers are byte for byte those of a file, and whose are not."""
    others = json.loads(path.read_text())
    same = {key: sum(map(str.__eq__, own, others.get(key, ()))) for key, own in found.items()}
    print(f"{sum(same.values())} of {sum(map(len, found.values()))} answers are the same")
    for key, own in found.items():
        if same[key] < len(own):
            print(f"  {key}: {len(own) - same[key]} of {len(own)} are not")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="*", default=sorted(PROBLEMS), metavar="KERNEL")
    parser.add_argument("--devices", default="host,h100-sxm,mi300x")
    parser.add_argument("--count", type=int, default=60, help="questions of each kind")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--bodies", type=Path, help="write the answers instead of timing them")
    parser.add_argument("--same-as", type=Path, help="compare them with those of a file")
    given = parser.parse_args()
    is_timed = given.bodies is None and given.same_as is None
    rows, told = [], {}
    for device, name in itertools.product(given.devices.split(","), given.kernels):
        hardware = None if device == "host" else device
        sizes = np.random.default_rng(2026).permutation(np.arange(128, 4096)).tolist()
        if is_timed:
            rows.append(
                {"device": device, "kernel": name, **timed(name, hardware, sizes, given.count)}
            )
        else:
            told[f"{device} {name}"] = bodies(name, hardware, sizes[: given.count])
    if given.bodies is not None:
        given.bodies.write_text(json.dumps(told))
    if given.same_as is not None:
        compare(told, given.same_as)
    if is_timed:
        write(given.json, {"load": os.getloadavg()[0], "rows": rows})


def timed(name: str, device: str | None, sizes: Sequence[int], count: int) -> dict[str, Any]:
    """Return, and print, the times of answers before anything was measured, and after it was."""
    cold, again = sizes[: FIRST + count], sizes[-FIRST - count :]
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(load_settings(data_dir=folder))
        found = ask(Snapshot(store), name, device, cold)
        apart(confirm, folder, name, device, again)
        hits = ask(Snapshot(store), name, device, again)
    assert found["measured"] == 0
    shown = (f"p50 {t['p50_ms']:6.2f} p99 {t['p99_ms']:6.2f}" for t in (found, hits))
    kinds = ", ".join(map(" ".join, zip(("cold", "measured"), shown, strict=True)))
    print(
        f"{device or 'host':10} {name:20} {kinds} ({hits['measured']} of {len(again)})", flush=True
    )
    return {"cold": found, "measured": hits}


if __name__ == "__main__":
    main()
