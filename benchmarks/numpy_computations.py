"""Functions of NumPy as computations, beside NumPy itself.

    python -m benchmarks.numpy_computations [--match REGEX] [--threads 1 2] [--rounds 11]
                                            [--dtype float32|float64] [--json FILE]

Functions as users of NumPy write them; a new output per call. Interleaved in one
process; one thread by thread CPU time, several by wall time (NumPy's own threads are those of its
BLAS: as many); medians, and NumPy's time over ours. Errors are the largest difference to the same
function of the next wider type, over its largest element. Nothing is tuned.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tilecore
from benchmarks.against_torch import Row, write
from benchmarks.cpu import interleaved

Array = Any


def softmax(x: Array) -> Array:
    shifted = np.exp(x - x.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(0.7978846 * (x + 0.044715 * x**3)))


def standardized(x: Array) -> Array:
    return (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-6)


def layer_norm(x: Array, scale: Array) -> Array:
    mean = x.mean(axis=1, keepdims=True)
    return (x - mean) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) * scale


def heated(x: Array) -> Array:
    around = x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2]
    return x[1:-1, 1:-1] + 0.1 * (around - 4 * x[1:-1, 1:-1])


def distances(x: Array, y: Array) -> Array:
    squares = (x * x).sum(1)[:, None] - 2 * (x @ y.T) + (y * y).sum(1)
    return np.sqrt(np.maximum(squares, 0))


def covariance(x: Array) -> Array:
    centred = x - x.mean(axis=0)
    return centred.T @ centred / (x.shape[0] - 1)


def perceptron(x: Array, w: Array, b: Array, v: Array) -> Array:
    return np.maximum(x @ w + b, 0) @ v


def neighbours(x: Array, sources: Array, targets: Array) -> Array:
    sums = np.zeros_like(x)
    np.add.at(sums, targets, x[sources])
    return np.tanh(sums)


def complex_spectrum(x: Array) -> Array:
    return np.log1p(np.abs(np.fft.rfft(x, axis=1)))


def ranked(x: Array) -> Array:
    return np.sort(x * x, axis=1)[:, -8:].sum(axis=1)


def times_column(x: Array, v: Array) -> Array:
    return x @ v


def row_times(v: Array, x: Array) -> Array:
    return v @ x


def ranks(links: Array) -> Array:
    links = links / links.sum(axis=0)
    rank = np.full(links.shape[0], 1 / links.shape[0], dtype=links.dtype)
    for _ in range(20):
        rank = 0.85 * (links @ rank) + 0.15 / links.shape[0]
    return rank


def regressed(x: Array, y: Array, w: Array) -> Array:
    for _ in range(5):
        w = w - 0.1 * (x.T @ (1 / (1 + np.exp(-(x @ w))) - y)) / len(y)
    return w


def escapes(x: Array, y: Array) -> Array:
    real, imaginary, steps = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    for _ in range(20):
        square = real * real - imaginary * imaginary + x
        real, imaginary = square, 2 * real * imaginary + y
        steps = steps + (real * real + imaginary * imaginary < 4)
    return steps


def alive(cells: Array) -> Array:
    around = np.zeros(cells.shape, dtype=int)
    for i in (-1, 0, 1):
        for j in (-1, 0, 1):
            if i or j:
                around += np.roll(np.roll(cells, i, 0), j, 1)
    return ((around == 3) | ((cells == 1) & (around == 2))).astype(cells.dtype)


def swung(y: Array) -> Array:
    def slope(y: Array) -> Array:
        return np.array([y[1], -y[0]])

    for _ in range(5):
        first = slope(y)
        second = slope(y + 0.005 * first)
        third = slope(y + 0.005 * second)
        fourth = slope(y + 0.01 * third)
        y = y + 0.01 / 6 * (first + 2 * second + 2 * third + fourth)
    return y


def pulled(at: Array, speed: Array, mass: Array) -> Array:
    for _ in range(2):
        apart = at[None] - at[:, None]
        far = np.sqrt((apart**2).sum(-1)) + np.eye(len(at), dtype=at.dtype)
        speed = speed + 0.01 * (mass[None, :, None] * apart / far[..., None] ** 3).sum(1)
        at = at + 0.01 * speed
    return at


def points(depth: Array) -> Array:
    z = depth.astype(np.float32) / 1000
    rows, columns = depth.shape
    u, v = np.meshgrid(np.arange(columns), np.arange(rows))
    return np.stack([(u - 320) * z / 500, (v - 240) * z / 500, z], axis=-1).reshape(-1, 3)


def centres(x: Array, means: Array) -> Array:
    for _ in range(3):
        nearest = ((x[:, None] - means) ** 2).sum(-1).argmin(1)
        means = np.array([
            np.where((nearest == k)[:, None], x, 0).sum(0) / np.maximum((nearest == k).sum(), 1)
            for k in range(4)
        ])  # fmt: skip
    return means


def gates(x: Array, state: Array, w: Array, b: Array) -> Array:
    kept, taken, shown, new = np.split(np.concatenate([x, state], axis=1) @ w.T + b, 4, axis=1)
    state = state / (1 + np.exp(-kept)) + np.tanh(new) / (1 + np.exp(-taken))
    return np.tanh(state) / (1 + np.exp(-shown))


def convolved(x: Array, w: Array) -> Array:
    y = np.zeros((w.shape[0], x.shape[1] - 2, x.shape[2] - 2), dtype=x.dtype)
    for f in range(w.shape[0]):
        for i in range(3):
            for j in range(3):
                part = x[:, i : i + y.shape[1], j : j + y.shape[2]]
                y[f] += np.einsum("c,chw->hw", w[f, :, i, j], part)
    return np.maximum(y, 0)


def _normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _integers(most: int, count: int) -> Array:
    return np.random.default_rng(count).integers(0, most, count)


CASES: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
    "softmax 4096x1024": (softmax, (_normal(4096, 1024),)),
    "gelu 4096x1024": (gelu, (_normal(4096, 1024),)),
    "standardized columns 4096x1024": (standardized, (_normal(4096, 1024),)),
    "layer norm 4096x1024": (layer_norm, (_normal(4096, 1024), _normal(1024))),
    "heat equation 2048x2048": (heated, (_normal(2048, 2048),)),
    "distances 2048x1024, depth 64": (distances, (_normal(2048, 64), _normal(1024, 64))),
    "covariance 8192x256": (covariance, (_normal(8192, 256),)),
    "perceptron 512x512x2048": (
        perceptron, (_normal(512, 512), _normal(512, 2048), _normal(2048), _normal(2048, 512)),
    ),
    "sums over 100000 edges of 10000x64": (
        neighbours, (_normal(10000, 64), _integers(10000, 100000), _integers(9999, 100000)),
    ),
    "matrix times column 300x300": (times_column, (_normal(300, 300), _normal(300))),
    "matrix times column 1024x1024": (times_column, (_normal(1024, 1024), _normal(1024))),
    "matrix times column 10000x8": (times_column, (_normal(10000, 8), _normal(8))),
    "matrix times column 8192x2048": (times_column, (_normal(8192, 2048), _normal(2048))),
    "row times matrix 1024x1024": (row_times, (_normal(1024), _normal(1024, 1024))),
    "page rank 1000x1000": (ranks, (abs(_normal(1000, 1000)),)),
    "logistic regression 5000x30": (
        regressed, (_normal(5000, 30), abs(_normal(5000)) % 1, _normal(30)),
    ),
    "escape times 512x512, 20 steps": (escapes, (_normal(512, 512) % 2, _normal(512, 512) % 2)),
    "game of life 512x512": (alive, (_integers(2, 512 * 512).reshape(512, 512),)),
    "five steps of Runge-Kutta, 2 numbers": (swung, (_normal(2),)),
    "two steps of 300 bodies": (
        pulled, (_normal(300, 3), _normal(300, 3), abs(_normal(300))),
    ),
    "points of a depth image 480x640": (
        points, (_integers(2**16, 480 * 640).astype(np.uint16).reshape(480, 640),),
    ),
    "three steps of k-means 5000x8": (centres, (_normal(5000, 8), _normal(4, 8))),
    "gates of a cell 64x256": (
        gates, (_normal(64, 256), _normal(64, 256), _normal(1024, 512) / 32, _normal(1024)),
    ),
    "convolution by loops 3x128x128 to 8": (
        convolved, (_normal(3, 128, 128), _normal(8, 3, 3, 3)),
    ),
    "sum of two 64x64": (np.add, (_normal(64, 64), _normal(64, 64))),
    "softmax 32x1000": (softmax, (_normal(32, 1000),)),
    "spectrum 1024x1024 (rfft by NumPy)": (complex_spectrum, (_normal(1024, 1024),)),
    "largest of rows 1024x1024 (sort by NumPy)": (ranked, (_normal(1024, 1024),)),
}  # fmt: skip


def measured(name: str, threads: int, rounds: int, dtype: str) -> Row:
    """Return the times of a function; print them."""
    function, arrays = CASES[name]
    given = [a.astype(dtype) if a.dtype == np.float32 else a for a in arrays]
    computation = tilecore.compute(function, dynamic=False)
    wider = np.float64 if dtype == "float32" else np.longdouble
    wide = [a.astype(wider) if a.dtype == dtype else a for a in given]
    exact = function(*wide)
    scale = float(np.abs(exact).max())
    error = float(np.abs(computation(*given) - exact).max()) / scale
    own = float(np.abs(function(*given) - exact).max()) / scale
    calls = {"ours": lambda: computation(*given), "numpy": lambda: function(*given)}
    found = interleaved(calls, threads, rounds)
    ms = {way: 1e3 * statistics.median(times) for way, times in found.items()}
    print(f"| {name} | {threads} | {ms['ours']:.3f} | {ms['numpy'] / ms['ours']:.2f} | "
          f"{error:.1e}, {own:.1e} |", flush=True)  # fmt: skip
    return {
        "case": name,
        "dtype": dtype,
        "threads": threads,
        "ms": ms,
        "error": error,
        "error_numpy": own,
    }


def main() -> None:
    """Measure every function and print it."""
    np.seterr(all="ignore")  # points that escape grow beyond all bounds
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--match", default="", help="functions whose name matches")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print("| function | threads | ours, ms | NumPy / ours | error ours, NumPy |")
    print("|---|---|---|---|---|")
    rows = [
        measured(name, threads, options.rounds, options.dtype)
        for threads in options.threads for name in CASES if re.search(options.match, name)
    ]  # fmt: skip
    write(rows, options.json)


if __name__ == "__main__":
    main()
