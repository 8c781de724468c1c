"""A language model of Hugging Face's that generates on the CPU: by torch, and as a computation.

    python benchmarks/generation.py [--dtype bfloat16] [--threads 1,2] [--width 64] [--compile]
        [--weights int8]

Needs the package transformers (a peer, no dependency). A Llama with random weights (4 layers of
1024, 16 heads on 8, 8192 words) reads a prompt of 128 tokens and generates with its cache. Torch
and ``tilecore.compute(model.forward)`` take turns, token by token; medians. ``--compile``:
``torch.compile(model.forward, dynamic=True)`` takes turns as well. ``--weights``: of linear layers,
int8 with a scale per row, or int4 with one per 64 columns, which plain functions of torch unpack.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

import tilecore

CONFIG = {
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8,
    "vocab_size": 8192, "pad_token_id": 0,
}  # fmt: skip
GROUPS = {"int8": 0, "int4": 64}  # columns that share a scale; 0: all of them
PROMPT, TOKENS, WARM, ROUNDS = 128, 60, 6, 7
Ways = Mapping[str, Callable[..., Any]]


class Narrow(torch.nn.Module):
    """A linear layer of integers of 8 or 4 bits.

    Attributes:
        codes: (N, K) of int8; of 4 bits two neighbours per byte, (N, K / 2) of uint8.
        scales: (N, groups, 1).
    """

    codes: torch.Tensor
    scales: torch.Tensor

    def __init__(self, linear: torch.nn.Linear, kind: str) -> None:
        super().__init__()
        self.rows, self.group = linear.weight.shape[0], GROUPS[kind] or linear.weight.shape[1]
        weight = linear.weight.detach().float().view(self.rows, -1, self.group)
        most = 127 if kind == "int8" else 7
        scales = weight.abs().amax(-1, keepdim=True) / most
        codes = (weight / scales).round().clamp(-most, most).to(torch.int8).view(self.rows, -1)
        if kind == "int4":
            parts = (codes + 8).to(torch.uint8)
            codes = parts[:, ::2] | parts[:, 1::2] << 4
        self.register_buffer("codes", codes.contiguous())
        self.register_buffer("scales", scales.to(linear.weight.dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (..., N) for (..., K)."""
        codes = self.codes
        if codes.dtype == torch.uint8:
            codes = (torch.stack([codes & 15, codes >> 4], -1).to(torch.int8) - 8).flatten(1)
        weight = codes.view(self.rows, -1, self.group).to(x.dtype) * self.scales
        return torch.nn.functional.linear(x, weight.view(self.rows, -1))


def with_narrow_weights(model: torch.nn.Module, kind: str) -> None:
    """Replace the linear layers of a model."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(module, name, Narrow(child, kind))


def prompts(config: Any, ways: Ways) -> tuple[dict[str, list[float]], dict[str, float], Any]:
    """Return times of reading a prompt and of its first reading, s, and a cache that has read."""
    ids = torch.randint(1, CONFIG["vocab_size"], (1, PROMPT))
    times: dict[str, list[float]] = {name: [] for name in ways}
    first: dict[str, float] = {}
    for _ in range(ROUNDS + 1):
        for name, way in ways.items():
            cache = transformers.DynamicCache(config=config)
            start = time.perf_counter()
            way(ids, cache=cache, use_cache=True)
            took = time.perf_counter() - start
            if name in first:
                times[name].append(took)
            first.setdefault(name, took)
    return times, first, cache


def tokens(ways: Ways, cache: Any) -> tuple[dict[str, list[float]], float]:
    """Return times of single tokens, s, and the largest difference of logits to torch's."""
    caches = {name: copy.deepcopy(cache) for name in ways}
    times: dict[str, list[float]] = {name: [] for name in ways}
    largest = 0.0
    for number in range(WARM + TOKENS):
        one = torch.randint(1, CONFIG["vocab_size"], (1, 1))
        logits = {}
        for name, way in ways.items():
            start = time.perf_counter()
            logits[name] = way(one, cache=caches[name], use_cache=True).logits
            if number >= WARM:
                times[name].append(time.perf_counter() - start)
        wanted = logits["torch"].double()
        difference = (logits["ours"].double() - wanted).abs().max() / wanted.abs().max()
        largest = max(largest, float(difference))
    return times, largest


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--width", type=int, default=1024, help="of the model; its heads are 16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--weights", choices=tuple(GROUPS), help="of linear layers")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.manual_seed(0)
    width = arguments.width
    sizes = {"hidden_size": width, "intermediate_size": width * 11 // 4}
    config = transformers.LlamaConfig(**CONFIG, **sizes)
    model = transformers.LlamaForCausalLM(config).eval().to(getattr(torch, arguments.dtype))
    if arguments.weights:
        with_narrow_weights(model, arguments.weights)
    print("| threads | what | torch, ms | ours, ms | torch / ours | torch.compile / ours | first |")
    print("|---|---|---|---|---|---|---|")
    rows = []
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        os.environ["TILECORE_DATA_DIR"] = folder
        for threads in map(int, arguments.threads.split(",")):
            torch.set_num_threads(threads)
            ways = {"torch": model.forward, "ours": tilecore.compute(model.forward)}
            if arguments.compile:
                ways["compiled"] = torch.compile(model.forward, dynamic=True)
            read, first, cache = prompts(config, ways)
            spoken, largest = tokens(ways, cache)
            for what, times in ((f"a prompt of {PROMPT}", read), ("a token", spoken)):
                found = {name: statistics.median(t) * 1e3 for name, t in times.items()}
                ratios = {name: found[name] / found["ours"] for name in found}
                kinds = {"dtype": arguments.dtype, "weights": arguments.weights}
                row = {"threads": threads, **kinds, "what": what, "ms": found}
                rows.append({**row, "first_s": first, "largest_difference": largest})
                firsts = ", ".join(f"{name} {s:.1f} s" for name, s in first.items())
                cells = (
                    threads, what, f"{found['torch']:.2f}", f"{found['ours']:.2f}",
                    f"{ratios['torch']:.2f}", f"{ratios.get('compiled', float('nan')):.2f}", firsts,
                )  # fmt: skip
                print(f"| {' | '.join(map(str, cells))} |", flush=True)
            print(f"largest difference of logits {largest:.1e} of the largest", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
