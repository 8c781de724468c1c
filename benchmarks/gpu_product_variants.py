"""Variants of our products for one run beside torch and Triton: which order, tiles, clusters?

    python benchmarks/gpu_product_variants.py FOLDER [--only REGEX]     # no GPU
    python benchmarks/gpu_peers.py run FOLDER [--out FILE]              # on the GPU

Each variant is a participant of its own, so that all of them are timed in turns. The first and the
last ones of ``gemm`` are the same machine code: what they differ by is the device's doing. Programs
of ``pairs`` have clusters of two blocks that load what both multiply once, which no pass makes.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_peers_build import _code

import tilecore.language as T
from tilecore import kernels
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.target import parse_target

KNOBS = ("block_M", "block_N", "block_K", "num_stages", "threads")
Make = Callable[[], Any]
HALF = {"dtype": "float16", "out_dtype": "float16"}
BF16 = {"dtype": "bfloat16", "out_dtype": "bfloat16"}
WIDE = {"m": 2048, "n": 28672, "k": 4096, **BF16}
SMALL = {"m": 1000, "n": 1000, "k": 1000, **HALF}
RAGGED = {"m": 4096, "n": 4104, "k": 2056, **HALF}
BATCHED = {"batch": 64, "m": 1024, "n": 1024, "k": 1024, **HALF}
IMAGES = {
    "batch": 32, "height": 56, "width": 56, "channels": 128, "filters": 128, "padding": 1, **HALF,
}  # fmt: skip
FLOAT8 = {"dtype": "float8_e4m3fn", "out_dtype": "bfloat16"}
TILES: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "wide": ((256, 128, 64, 3, 256), (256, 128, 64, 4, 256), (256, 128, 32, 6, 256)),
    "float8": (
        (128, 256, 128, 3, 256), (128, 256, 128, 4, 256), (128, 128, 128, 5, 256),
        (128, 128, 128, 6, 256), (128, 192, 128, 4, 256), (256, 128, 128, 3, 256),
    ),
    "small": (
        (64, 128, 128, 4, 128), (64, 128, 64, 8, 128), (128, 128, 64, 6, 256),
        (64, 64, 128, 3, 128), (128, 64, 128, 4, 256),
    ),
    "ragged": (
        (192, 256, 64, 4, 384), (256, 192, 64, 4, 256), (192, 256, 64, 3, 384),
        (128, 256, 64, 3, 256), (256, 128, 64, 4, 256), (192, 192, 64, 3, 384),
    ),
    "batched": (
        (128, 256, 64, 3, 256), (128, 256, 64, 4, 256), (256, 128, 64, 3, 256),
        (256, 128, 64, 4, 256), (128, 192, 64, 4, 256), (128, 128, 64, 5, 256),
    ),
    "images": (
        (128, 128, 64, 4, 256), (128, 128, 64, 3, 256), (256, 128, 64, 3, 256),
        (64, 128, 64, 4, 128), (128, 64, 64, 4, 256), (128, 128, 128, 2, 256),
    ),
}  # fmt: skip


def library(name: str, fields: Mapping[str, Any], tile: tuple[int, ...]) -> Make:
    """Return what traces a kernel of the library."""
    definition = kernels.get(name).on("cuda")
    knobs = {k.name: k.default for k in definition.knobs} | dict(zip(KNOBS, tile, strict=True))
    return lambda: definition.program(definition.parse_problem(fields), knobs)


def clustered(fields: Mapping[str, Any], tile: tuple[int, ...], cluster: tuple[int, int]) -> Make:
    """Return what traces a product of one tile a block, in clusters that load for each other."""
    M, N, K, dtype = (fields[k] for k in ("m", "n", "k", "dtype"))
    block_M, block_N, block_K, stages, threads = tile

    def make() -> Any:
        @T.prim_func
        def gemm(
            A: T.Tensor((M, K), dtype),
            B: T.Tensor((K, N), dtype),
            C: T.Tensor((M, N), dtype),
        ) -> None:
            grid, dims = (T.ceildiv(N, block_N), T.ceildiv(M, block_M)), (*cluster, 1)
            with T.Kernel(*grid, threads=threads, cluster_dims=dims) as (bx, by):
                a = T.alloc_shared((block_M, block_K), dtype)
                b = T.alloc_shared((block_K, block_N), dtype)
                c = T.alloc_fragment((block_M, block_N), "float32")
                T.clear(c)
                for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
                    T.copy(A[by * block_M, ko * block_K], a)
                    T.copy(B[ko * block_K, bx * block_N], b)
                    T.gemm(a, b, c)
                T.copy(c, C[by * block_M, bx * block_N])

        return gemm

    return make


def pairs(
    fields: Mapping[str, Any], tile: tuple[int, ...], rows: int, is_scaled: bool = False
) -> Make:
    """Return what traces a product by pairs of blocks that stay, each pair below each other.

    ``rows``: of pairs in a panel, a divisor of those that there are.
    """
    of_problem = [fields[k] for k in ("m", "n", "k", "dtype", "out_dtype")]
    M, N, K, dtype, out = of_problem
    block_M, block_N, block_K, stages, threads = tile
    columns, workers = N // block_N, 66
    total = M // (2 * block_M) * columns
    b_tile = (block_N, block_K) if is_scaled else (block_K, block_N)

    @T.macro
    def tiles(A: Any, B: Any, C: Any, ScaleA: Any, ScaleB: Any) -> None:
        with T.Kernel(2, workers, threads=threads, cluster_dims=(2, 1, 1)) as (rank, worker):
            a, b = T.alloc_shared((block_M, block_K), dtype), T.alloc_shared(b_tile, dtype)
            c = T.alloc_fragment((block_M, block_N), "float32")
            stored = T.alloc_shared((block_M, block_N), out)
            for wave in T.serial(-(-total // workers)):
                place = wave * workers + worker
                if place < total:
                    column = T.min(place % (columns * rows) // rows, columns - 1)
                    row = place // (columns * rows) * rows + place % rows
                    by = T.min(row, M // (2 * block_M) - 1) * 2 + rank
                    T.clear(c)
                    for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
                        T.copy(A[by * block_M, ko * block_K], a)
                        if is_scaled:
                            T.copy(B[column * block_N, ko * block_K], b)
                        else:
                            T.copy(B[ko * block_K, column * block_N], b)
                        T.gemm(a, b, c, transpose_B=is_scaled)
                    if is_scaled:
                        for i, j in T.Parallel(block_M, block_N):
                            x = c[i, j] * ScaleA[by * block_M + i]
                            c[i, j] = x * ScaleB[column * block_N + j]
                    T.copy(c, stored)
                    T.copy(stored, C[by * block_M, column * block_N])

    def make() -> Any:
        M, N, K, dtype, out = of_problem  # names of this frame, which annotations are found in
        b_shape = (N, K) if is_scaled else (K, N)
        if is_scaled:

            @T.prim_func
            def scaled_gemm(
                A: T.Tensor((M, K), dtype),
                B: T.Tensor(b_shape, dtype),
                ScaleA: T.Tensor((M,), "float32"),
                ScaleB: T.Tensor((N,), "float32"),
                Bias: T.Tensor((N,), "float32"),
                C: T.Tensor((M, N), out),
            ) -> None:
                tiles(A, B, C, ScaleA, ScaleB)

            return scaled_gemm

        @T.prim_func
        def gemm(
            A: T.Tensor((M, K), dtype),
            B: T.Tensor(b_shape, dtype),
            C: T.Tensor((M, N), out),
        ) -> None:
            tiles(A, B, C, None, None)

        return gemm

    return make


def of_library(name: str, fields: Mapping[str, Any], kind: str) -> dict[str, Make]:
    """Return variants of a kernel of the library by their tiles."""
    return {"x".join(map(str, t)): library(name, fields, t) for t in TILES[kind]}


def cases() -> Iterator[tuple[str, dict[str, Any], dict[str, Make]]]:
    """Yield kernels, their problems and the variants of each."""
    tile = (128, 256, 64, 3, 256)
    same = {f"same_{n}": library("gemm", WIDE, tile) for n in range(4)}
    first, second, *last = same.items()
    between = of_library("gemm", WIDE, "wide") | {"pairs": pairs(WIDE, tile, 8)}
    yield "gemm", WIDE, {**dict((first, second)), **between, **dict(last)}
    for size in (4096, 8192):
        fields = {"m": size, "n": size, "k": size, **FLOAT8}
        made = of_library("scaled_gemm", fields, "float8")
        made["pairs"] = pairs(fields, (128, 256, 128, 3, 256), 8, is_scaled=True)
        yield "scaled_gemm", fields, made
    small = {
        f"clusters_{x}x{y}": clustered(SMALL, (64, 128, 128, 4, 128), (x, y))
        for x, y in ((1, 2), (2, 1), (2, 2), (1, 4))
    }
    yield "gemm", SMALL, {**of_library("gemm", SMALL, "small"), **small}
    ragged = {
        "clusters_" + "x".join(map(str, t)): clustered(RAGGED, t, (1, 2))
        for t in ((192, 256, 64, 3, 384), (256, 192, 64, 3, 256))
    }
    yield "gemm", RAGGED, {**of_library("gemm", RAGGED, "ragged"), **ragged}
    yield "batched_gemm", BATCHED, of_library("batched_gemm", BATCHED, "batched")
    yield "conv2d", IMAGES, of_library("conv2d", IMAGES, "images")


def build(folder: Path, only: str) -> None:
    """Compile all variants into a folder."""
    for number, (name, fields, made) in enumerate(cases()):
        problem = dict(kernels.get(name).parse_problem(fields))
        label, place, ours = f"{name} {fields}", folder / f"{number:02d}", []
        if not re.search(only, label):
            continue
        print(label, flush=True)
        for variant, make in made.items():
            there = place / str(len(ours))
            with tempfile.TemporaryDirectory() as store:
                artifact = compile(make(), parse_target("h200"), store=ArtifactStore(Path(store)))
                there.mkdir(parents=True, exist_ok=True)
                for file in (artifact.path / "manifest.json", artifact.library):
                    shutil.copy(file, there)
                print(f"  {variant}: {_code(artifact)}", flush=True)
            ours.append({
                "participant": f"tilecore_{variant}", "config": {"variant": variant},
                "folder": there.name,
            })  # fmt: skip
        case = {"kernel": name, "problem": problem, "ours": ours}
        (place / "case.json").write_text(json.dumps(case, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    build(given.folder, given.only)
