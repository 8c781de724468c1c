"""``torch.compile(backend="tilecore")`` beside torch eager and torch.compile's own backend.

    python -m benchmarks.compiled_models [--match REGEX] [--rounds 7] [--threads 1 2] [--json FILE]

Small models, forward without a gradient (``infer``), and forward and backward (``train``), nothing
tuned; interleaved, one thread by thread CPU time, several by wall time; medians, ratios
torch / ours. Gradients of all parameters are compared with those of the model in float64 first: the
largest error of one, of its largest element, ours and eager.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.cpu import interleaved
from tilecore.artifact import compiler_versions

Case = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Block(nn.Module):
    """A layer of a transformer: attention by heads, and two linear layers or a gated three."""

    def __init__(self, width: int, heads: int, is_gated: bool = False) -> None:
        super().__init__()
        self.heads, self.is_gated = heads, is_gated
        self.first, self.last = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        inner = 8 * width // 3 // 64 * 64 if is_gated else 4 * width
        self.up = nn.Linear(width, 2 * inner if is_gated else inner, bias=not is_gated)
        self.down = nn.Linear(inner, width, bias=not is_gated)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a stream of the same shape."""
        rows, length, width = x.shape
        parts = self.qkv(self.first(x)).chunk(3, -1)
        q, k, v = (p.view(rows, length, self.heads, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
        h = self.up(self.last(x))
        if self.is_gated:
            gate, up = h.chunk(2, -1)
            return x + self.down(F.silu(gate) * up)
        return x + self.down(F.gelu(h, approximate="tanh"))


class Language(nn.Module):
    """A model of language with its loss."""

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.layers = nn.Sequential(*(Block(width, width // 64) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Return the cross entropy."""
        logits = self.head(self.norm(self.layers(self.table(ids))))
        return F.cross_entropy(logits.float().flatten(0, 1), wanted.flatten())


class Neighbours(nn.Module):
    """A layer of a graph network: the mean of what edges lead from (GraphSAGE)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> Any:
        """Return a row for each node."""
        counts = x.new_zeros(len(x)).index_add(0, targets, x.new_ones(len(sources)))
        total = torch.zeros_like(x).index_add(0, targets, x[sources])
        return F.relu(self.own(x) + self.others(total / counts.clamp_min(1)[:, None]))


class Attending(nn.Module):
    """A layer of a graph network: what edges lead from, by weights of each head (GAT)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.source, self.target = (
            nn.Parameter(torch.randn(heads, width // heads) / 8) for _ in range(2)
        )

    def forward(self, x: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> Any:
        """Return a row for each node."""
        h = self.inner(x).view(len(x), *self.source.shape)
        scores = (h * self.source).sum(-1)[sources] + (h * self.target).sum(-1)[targets]
        weights = F.leaky_relu(scores, 0.2).exp()
        total = h.new_zeros(h.shape[:2]).index_add(0, targets, weights)
        found = torch.zeros_like(h).index_add(0, targets, h[sources] * weights[..., None])
        return (found / (total[..., None] + 1e-9)).flatten(1)


class Words(nn.Module):
    """The first layer of a model of language: the sum of three tables' rows, normalised (BERT)."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, width) for n in (words, 512, 2))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor, places: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        """Return a row for each word."""
        given = zip(self.tables, (ids, places, kinds), strict=True)
        word, place, kind = (table(i) for table, i in given)
        return F.gelu(self.norm(word + place + kind))


def graphs_and_words() -> dict[str, Case]:
    """Return models that read rows which integers name, by name."""
    nodes, edges = torch.randn(20_000, 64), torch.randint(0, 20_000, (2, 200_000))
    ids = torch.randint(0, 30_000, (8, 256))
    places = torch.arange(256).expand(8, -1).contiguous()
    return {
        "graph, mean of neighbours 20000x64, 200000 edges": (Neighbours(64), (nodes, *edges)),
        "graph, attention of 4 heads 20000x64, 200000 edges": (Attending(64, 4), (nodes, *edges)),
        "words 8x256x768 of 30000": (Words(30_000, 768), (ids, places, ids % 2)),
    }


def cases() -> dict[str, Case]:
    """Return models and what they are called with, by name."""
    found: dict[str, Case] = graphs_and_words()
    for dtype in torch.float32, torch.bfloat16:
        name = str(dtype).removeprefix("torch.")
        x, wide = torch.randn(2, 256, 512), torch.randn(256, 1024)
        perceptron = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
        found |= {
            f"perceptron 256x1024x4096 {name}": (perceptron, (wide,)),
            f"layer 2x256x512 {name}": (Block(512, 8), (x,)),
            f"gated layer 2x256x512 {name}": (Block(512, 8, is_gated=True), (x,)),
            f"layer 1x128x1024 {name}": (Block(1024, 16), (torch.randn(1, 128, 1024),)),
        }
        ids = torch.randint(0, 4096, (2, 128))
        model = Language(4096, 256, 4)
        found[f"language 4 layers 2x128x256 {name}"] = (model, (ids, ids.roll(-1, 1)))
        for key, (module, given) in list(found.items()):
            if key.endswith(name):
                own = tuple(t.to(dtype) if t.is_floating_point() else t for t in given)
                found[key] = (module.to(dtype), own)
    return found


def gradients(model: nn.Module, call: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> Any:
    """Return those of all parameters for the mean square of what a call returns."""
    for parameter in model.parameters():
        parameter.grad = None
    call(*args).float().square().mean().backward()
    return [p.grad for p in model.parameters()]


def largest_error(found: Any, exact: Any) -> float:
    """Return the largest error of a gradient, of its largest element."""
    return max(
        ((f.double() - e).abs().max() / e.abs().max().clamp_min(1e-30)).item()
        for f, e in zip(found, exact, strict=True)
    )


def measured(name: str, case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Return times and ratios of one model."""
    model, args = case
    torch.compiler.reset()
    doubled = copy.deepcopy(model).double()
    wide = tuple(a.double() if a.is_floating_point() else a for a in args)
    for parameter in doubled.parameters():
        parameter.grad = None
    doubled(*wide).square().mean().backward()
    exact = [p.grad for p in doubled.parameters()]
    ways: dict[str, Callable[..., Any]] = {
        "eager": model, "compiled": torch.compile(model),
        "ours": torch.compile(model, backend="tilecore"),
    }  # fmt: skip
    found: dict[str, Any] = {"name": name, "error": {}, "first_s": {}}
    for who, call in ways.items():
        start = time.perf_counter()
        found["error"][who] = largest_error(gradients(model, call, args), exact)
        with torch.no_grad():
            call(*args)
        found["first_s"][who] = time.perf_counter() - start

    def trained(call: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: gradients(model, call, args)

    def inferred(call: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> None:
            with torch.no_grad():
                call(*args)

        return run

    for threads in options.threads:
        for kind, made in (("infer", inferred), ("train", trained)):
            calls = {who: made(call) for who, call in ways.items()}
            for call in calls.values():
                call()
            times = interleaved(calls, threads, options.rounds)
            median = {who: statistics.median(t) for who, t in times.items()}
            found[f"{kind} {threads}T"] = {
                "ms": {who: t * 1e3 for who, t in median.items()},
                "of_eager": median["eager"] / median["ours"],
                "of_compiled": median["compiled"] / median["ours"],
            }
    return found


def main() -> None:
    """Measure the models asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--match", default="")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TILECORE_DATA_DIR"] = folder  # what was tuned before is not known
        for name, case in cases().items():
            if re.search(options.match, name):
                rows.append(measured(name, case, options))
                shown = "; ".join(
                    f"{kind} {t}T {row['ms']['ours']:.1f} ms {row['of_eager']:.2f}, "
                    f"{row['of_compiled']:.2f}"
                    for t in options.threads for kind in ("infer", "train")
                    for row in (rows[-1][f"{kind} {t}T"],)
                )  # fmt: skip
                errors = ", ".join(f"{who} {e:.1e}" for who, e in rows[-1]["error"].items())
                first = ", ".join(f"{who} {s:.1f}" for who, s in rows[-1]["first_s"].items())
                print(f"{name}: eager, compiled / ours: {shown}; errors {errors}; first s {first}",
                      flush=True)  # fmt: skip
    if options.json:
        versions = {"torch": torch.__version__, **compiler_versions()}
        options.json.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
