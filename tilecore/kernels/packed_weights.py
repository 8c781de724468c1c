"""Weights of 4 bits as dequant_gemm takes them: what codes mean, and how words pack them."""

from __future__ import annotations

import numpy as np

from tilecore.errors import InvalidProblem
from tilecore.kernels.definition import Problem, extent

NF4 = (
    -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
)  # fmt: skip
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
TABLES = {"int4": tuple(float(i - 8) for i in range(16)), "nf4": NF4, "fp4": FP4}
FP8 = ("float8_e4m3fn", "float8_e5m2")
PER_WORD = 8
DEPTH = 128  # of a tile of decoded weights, at most
PANEL = 64  # columns of a block
BITS = tuple(4 * (i // 2) + 16 * (i % 2) for i in range(PER_WORD))  # where element i of a word lies


def pack_codes(codes: np.ndarray) -> np.ndarray:
    """Return codes[K, N] (0 to 15) as int32 words[ceil(N / 64), ceil(K / 128) * 16, 64]."""
    k, n = codes.shape
    padded = np.zeros((-(-k // DEPTH) * DEPTH, -(-n // PANEL) * PANEL), np.uint32)
    padded[:k, :n] = codes
    words = np.zeros((padded.shape[0] // PER_WORD, padded.shape[1]), np.uint32)
    for i, bit in enumerate(BITS):
        words |= padded[i::PER_WORD] << np.uint32(bit)
    panels = words.reshape(words.shape[0], -1, PANEL).transpose(1, 0, 2)
    return np.ascontiguousarray(panels).view(np.int32)


def unpack_codes(words: np.ndarray, k: int, n: int) -> np.ndarray:
    """Return the codes[k, n] of packed words."""
    rows = words.view(np.uint32).transpose(1, 0, 2).reshape(words.shape[1], -1)
    codes = np.stack([(rows >> np.uint32(bit)) & np.uint32(15) for bit in BITS], 1)
    return codes.reshape(-1, rows.shape[1])[:k, :n]


def sizes(problem: Problem) -> tuple[int, int, int, int]:
    """Return m, n, k and group of a problem."""
    m, n, k, group = (extent(problem, f) for f in ("m", "n", "k", "group"))
    return m, n, k, group


def check(problem: Problem) -> None:
    """Check that words, tiles and groups do not cross each other; raises InvalidProblem (TC502)."""
    group = int(problem["group"])
    if group % PER_WORD or (group > DEPTH and group % DEPTH):
        raise InvalidProblem(
            field="group",
            expected=f"a multiple of {PER_WORD}, beyond {DEPTH} of {DEPTH}",
            found=group,
        )
