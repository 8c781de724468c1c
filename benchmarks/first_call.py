"""How long a program waits for the first call of a model, beside torch.compile.

    python benchmarks/first_call.py [--rounds 5] [--layers 2] [--peers]

Each call is that of a process of its own, which has imported torch and made the model (embedding,
transformer layers with gated products, a head; float32, on the CPU), and times from
``tilecore.compute(model.forward)`` to the first result, and the first result of another length.
First where no kernel was kept on disk, then where those of the process before are; ``--peers``:
torch.compile (``dynamic=True``) takes turns, with a folder of its own. Printed: medians in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, WORDS, ROWS, LENGTH = 256, 8, 1000, 2, 64
WAYS = ("tilecore", "torch.compile")


class Layer(nn.Module):
    """A layer: attention and a gated product, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 4 * WIDTH) for _ in range(2))
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return rows of ``WIDTH`` for rows of ``WIDTH``."""
        y, heads = self.first(x), (*x.shape[:2], HEADS, WIDTH // HEADS)
        q, k, v = (part(y).view(heads).transpose(1, 2) for part in (self.q, self.k, self.v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(seen.transpose(1, 2).reshape(x.shape))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    """Words to logarithms of their successors' probabilities."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return (rows, length, WORDS) for ids (rows, length)."""
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return F.log_softmax(self.head(self.norm(x)), -1)


def once(way: str, layers: int) -> list[float]:
    """Return how long the first call takes here, s, and the first one of another length."""
    torch.manual_seed(0)
    model = Model(layers).eval()
    with torch.no_grad():
        wanted = model(ids := torch.randint(0, WORDS, (ROWS, LENGTH)))
        began = time.perf_counter()
        function: Callable[..., Any]
        if way == "tilecore":
            import tilecore

            function = tilecore.compute(model.forward)
        else:
            function = torch.compile(model.forward, dynamic=True)
        found = function(ids)
        first_s, began = time.perf_counter() - began, time.perf_counter()
        function(torch.randint(0, WORDS, (ROWS, LENGTH + 1)))
        another_s = time.perf_counter() - began
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    return [first_s, another_s]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--once", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        print(json.dumps(once(given.once, given.layers)))
        return
    times: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for _ in range(given.rounds):
        for way in WAYS if given.peers else WAYS[:1]:
            with tempfile.TemporaryDirectory() as folder:
                own = {
                    "HOME": folder, "TILECORE_DATA_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder,
                }  # fmt: skip
                for kept in ("nothing", "kernels"):
                    command = [sys.executable, __file__, "--layers", str(given.layers)]
                    said = subprocess.run(
                        [*command, "--once", way], env={**os.environ, **own}, check=True,
                        stdout=subprocess.PIPE, text=True,
                    )  # fmt: skip
                    times[way, kept].append(json.loads(said.stdout.splitlines()[-1]))
    print("| way | kept on disk | first call, s | of another length, s |")
    print("|---|---|---|---|")
    for (way, kept), rows in times.items():
        first_s, another_s = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"| {way} | {kept} | {first_s:.2f} | {another_s:.2f} |")


if __name__ == "__main__":
    main()
