"""GPU recommendations without a GPU: beside nvidia-matmul-heuristics, and beside what is compiled.

    python benchmarks/gpu_recommendation.py --peer PYTHON_WITH_nvMatmulHeuristics [--json FILE]
    python benchmarks/gpu_recommendation.py --resources 40 [--json FILE]

--peer: float16 GEMM with float32 sums on four devices. The peer (pip install
nvidia-matmul-heuristics; it needs no GPU) names up to 64 CUTLASS configs for each shape with the
time that its model expects of them. Without split K, its best time of a tile of C is the measure:
what share of its best tile's speed has our first tile, the best of our first eight different tiles;
where among our tiles its first stands; how well both orders agree (Spearman). Its tiles include
ones that our space lacks (80, 144, 160 columns), and clusters, which our programs do not ask for.

--resources: that many configs of each space drawn at random, built by NVRTC: bytes of shared
memory, registers of a thread and resident blocks that the model expects, against what was compiled.

Neither says anything about the speed of kernels: nothing runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

SHAPES = (
    (4096, 4096, 4096), (8192, 8192, 8192), (1024, 1024, 1024), (2048, 2048, 2048),
    (512, 512, 512), (16, 4096, 4096), (64, 4096, 4096), (128, 8192, 8192), (256, 4096, 14336),
    (4096, 14336, 4096), (8192, 1024, 8192), (1024, 8192, 1024), (4096, 4096, 512),
    (2048, 6144, 2048), (300, 700, 1000), (16384, 1280, 8192), (128, 128, 16384),
    (3072, 3072, 3072), (6144, 4096, 1536), (32, 14336, 4096),
)  # fmt: skip
# Our profile, the peer's device and back end.
DEVICES = (
    ("h100", "H100_SXM", "CUTLASS3"), ("b200", "B200", "CUTLASS3"),
    ("a100-80gb", "A100_SXM_80GB", "GENERIC"), ("rtx-4090", "RTX_4090", "GENERIC"),
)  # fmt: skip
SPACES = (
    ("gemm", {"m": 4096, "n": 4096, "k": 4096, "dtype": "float16", "out_dtype": "float16"}),
    ("attention", {"batch": 4, "heads": 16, "kv_heads": 16, "seq_q": 2048, "seq_kv": 2048,
                   "dim": 128, "dtype": "float16"}),
)  # fmt: skip
FIRST = 8


def ask_peer(device: str, backend: str) -> None:
    """Print the peer's configs for all shapes as JSON (in the peer's own environment)."""
    import nvMatmulHeuristics as nv

    peer = nv.NvMatmulHeuristicsInterface(
        getattr(nv.NvMatmulHeuristicsTarget, backend), precision="HSH",
        flags=nv.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
    )  # fmt: skip
    hardware = peer.createHardwareDescriptor()
    peer.setHardwarePredefinedGpu(hardware, getattr(nv.NvMatmulHeuristicsNvidiaGpu, device))
    layout = nv.NvMatmulHeuristicsMatmulLayout.NN_ROW_MAJOR
    found = []
    for m, n, k in SHAPES:
        for answer in peer.get_with_mnk(m, n, k, layout, 64, hardware):
            kernel = answer["kernel"]
            if kernel.split_k == 1:
                tile = [kernel.cta_tile_m, kernel.cta_tile_n]
                found.append({"shape": [m, n, k], "tile": tile, "time_s": answer["runtime"]})
    print(json.dumps(found), flush=True)
    os._exit(0)  # its destructors crash


def our_tiles(profile: str, shape: tuple[int, int, int]) -> dict[tuple[int, int], float]:
    """Return the expected time of every tile of C, fastest first."""
    from recommender.analytic import estimate
    from recommender.hardware import load_profile
    from recommender.space import SearchSpace
    from tilecore import kernels

    gemm = kernels.get("gemm")
    m, n, k = shape
    values = {"m": m, "n": n, "k": k, "dtype": "float16", "out_dtype": "float16"}
    space = SearchSpace.build(gemm, gemm.parse_problem(values), load_profile(profile))
    time_s, columns = estimate(space).time_s, space.columns
    found: dict[tuple[int, int], float] = {}
    for row in np.argsort(time_s, kind="stable"):
        tile = (int(columns["block_M"][row]), int(columns["block_N"][row]))
        found.setdefault(tile, float(time_s[row]))
    return found


def compare(profile: str, theirs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per shape."""
    from scipy.stats import spearmanr

    by_shape: dict[tuple[int, int, int], dict[tuple[int, int], float]] = defaultdict(dict)
    for one in theirs:
        m, n, k = one["shape"]
        known, tile = by_shape[m, n, k], (one["tile"][0], one["tile"][1])
        known[tile] = min(known.get(tile, np.inf), one["time_s"])
    rows = []
    for shape, known in by_shape.items():
        ours = our_tiles(profile, shape)
        order = list(ours)
        best = min(known, key=lambda tile: known[tile])
        shared = [tile for tile in known if tile in ours]
        first = [known[best] / known[t] for t in order[:FIRST] if t in known]
        agreement = None
        if len(shared) > 3:
            agreement = float(
                spearmanr([known[t] for t in shared], [ours[t] for t in shared]).statistic
            )
        rows.append({
            "device": profile, "shape": list(shape), "their_tile": list(best),
            "their_us": known[best] * 1e6, "our_tile": list(order[0]),
            "our_us": ours[order[0]] * 1e6,
            "first": known[best] / known[order[0]] if order[0] in known else None,
            "best_of_8": max(first, default=None),
            "rank_of_theirs": order.index(best) + 1 if best in ours else None,
            "spearman": agreement, "shared_tiles": len(shared),
        })  # fmt: skip
    return rows


def summary(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table, a line per device."""
    lines = [
        "| device | first tile: share of their best (known to them) | best of 8 (known) | their "
        "first among our 8 | Spearman, mean | our time / theirs, geomean |",
        "|---|---|---|---|---|---|",
    ]
    for device in dict.fromkeys(r["device"] for r in rows):
        mine = [r for r in rows if r["device"] == device]
        first = [r["first"] for r in mine if r["first"] is not None]
        eight = [r["best_of_8"] for r in mine if r["best_of_8"] is not None]
        ranks = [r["rank_of_theirs"] for r in mine]
        inside = sum(rank is not None and rank <= FIRST for rank in ranks)
        rho = [r["spearman"] for r in mine if r["spearman"] is not None]
        ratio = statistics.geometric_mean(r["our_us"] / r["their_us"] for r in mine)
        lines.append(
            f"| {device} | {statistics.mean(first):.3f} ({len(first)} of {len(mine)}) | "
            f"{statistics.mean(eight):.3f} ({len(eight)}) | {inside} of {len(mine)} | "
            f"{statistics.mean(rho):.2f} ({len(rho)}) | {ratio:.2f} |"
        )
    return "\n".join(lines)


def resources(count: int) -> list[dict[str, Any]]:
    """Return expected and compiled resources of configs drawn from the spaces."""
    from recommender.gpu.products import products
    from recommender.gpu.resources import block_resources, target_of
    from recommender.hardware import load_profile
    from recommender.space import SearchSpace
    from tilecore import kernels
    from tilecore.artifact import ArtifactStore
    from tilecore.compiler import compile

    rows = []
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for profile in ("h100", "a100-80gb"):
            for kernel, problem in SPACES:
                definition, hardware = kernels.get(kernel), load_profile(profile)
                space = SearchSpace.build(definition, definition.parse_problem(problem), hardware)
                target, (launch,) = target_of(hardware), space.graph.launches
                known = space.known(space.columns)
                expected = block_resources(launch, known, target, products(launch, known, target))
                for row in rng.choice(len(space), min(count, len(space)), replace=False):
                    program = definition.program(space.problem, dict(space.config(row)))
                    made = compile(program, target, store=ArtifactStore(Path(folder)))
                    found = made.manifest.resources
                    rows.append({
                        "device": profile, "kernel": kernel, "config": dict(space.config(row)),
                        "shared_bytes": [int(expected.shared_bytes[row]), found["shared_bytes"]],
                        "registers": [float(expected.registers[row]), found["registers"]],
                        "resident": [int(expected.resident[row]), found["resident_blocks"]],
                        "spill_bytes": found["spill_bytes"],
                    })  # fmt: skip
    return rows


def resource_table(rows: list[dict[str, Any]]) -> str:
    """Return how expectation and code agree, a line per space."""
    lines = [
        "| space | configs | shared bytes exact | registers expected - compiled: "
        "10 %, median, 90 % | resident blocks exact | with spills |",
        "|---|---|---|---|---|---|",
    ]
    for device, kernel in dict.fromkeys((r["device"], r["kernel"]) for r in rows):
        mine = [r for r in rows if (r["device"], r["kernel"]) == (device, kernel)]
        off = np.quantile([r["registers"][0] - r["registers"][1] for r in mine], [0.1, 0.5, 0.9])
        shared = sum(r["shared_bytes"][0] == r["shared_bytes"][1] for r in mine)
        resident = sum(r["resident"][0] == r["resident"][1] for r in mine)
        spills = sum(r["spill_bytes"] > 0 for r in mine)
        lines.append(
            f"| {kernel}, {device} | {len(mine)} | {shared} | {off[0]:.0f}, {off[1]:.0f}, "
            f"{off[2]:.0f} | {resident} | {spills} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what was asked for and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--peer", help="Python of an environment with nvMatmulHeuristics")
    parser.add_argument("--resources", type=int, default=0, help="configs to build per space")
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    parser.add_argument("--ask", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ask:
        ask_peer(*given.ask)
        return
    found: dict[str, list[dict[str, Any]]] = {}
    if given.peer:
        rows = found["agreement"] = []
        for profile, device, backend in DEVICES:
            command = [given.peer, __file__, "--ask", device, backend]
            answer = subprocess.run(command, capture_output=True, text=True, check=True)
            rows += compare(profile, json.loads(answer.stdout))
        print(summary(rows))
    if given.resources:
        found["resources"] = resources(given.resources)
        print(resource_table(found["resources"]))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
