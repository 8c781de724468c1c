"""Kernel Tuner's strategies on a recorded space; runs where Kernel Tuner is installed.

    python benchmarks/kernel_tuner_replay.py SPACE.json STRATEGY TRIALS SEED ...

SPACE.json holds ``knobs`` (names), ``configs`` (lists of values) and ``times_ms`` (null: failed).
Kernel Tuner runs in its simulation mode and sees exactly these configurations as its space. Prints
one line of JSON: ``version``, ``curves`` (per seed, the fraction of the best speed after each
trial) or ``error``. Imports nothing of tilecore.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import random
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

EVALUATION = {  # what a cache entry of Kernel Tuner has beside config and time; replay ignores it
    "compile_time": 1.0, "verification_time": 0, "benchmark_time": 1.0, "strategy_time": 0,
    "framework_time": 0, "timestamp": "2023-12-22 09:54:05+00:00",
}  # fmt: skip
PROBLEM = (4096, 4096)


def number(text: Any) -> Any:
    """Return a knob's value as the number it spells, or as it is."""
    for kind in (int, float):
        with contextlib.suppress(ValueError, TypeError):
            return kind(text)
    return text


def cache_of(space: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded space as the cache file that Kernel Tuner's simulation mode reads."""
    knobs: list[str] = space["knobs"]
    configs = [[number(value) for value in config] for config in space["configs"]]
    entries = {}
    for config, time_ms in zip(configs, space["times_ms"], strict=True):
        time = "RuntimeFailedConfig" if time_ms is None else time_ms
        times = [] if time_ms is None else [time_ms] * 3
        entries[",".join(map(str, config))] = {
            **dict(zip(knobs, config, strict=True)), "time": time, "times": times, **EVALUATION,
        }  # fmt: skip
    values = {
        knob: sorted(set(column), key=lambda v: (isinstance(v, str), v))
        for knob, column in zip(knobs, zip(*configs, strict=True), strict=True)
    }
    return {
        "device_name": "recorded", "kernel_name": "recorded", "problem_size": list(PROBLEM),
        "tune_params_keys": knobs, "tune_params": values, "objective": "time", "cache": entries,
    }  # fmt: skip


def curve(cache: dict[str, Any], file: str, strategy: str, trials: int, seed: int) -> list[float]:
    """Return the fraction of the best speed that one run reaches after each trial."""
    import kernel_tuner
    import numpy as np

    knobs = cache["tune_params_keys"]
    legal = {tuple(entry[k] for k in knobs) for entry in cache["cache"].values()}
    best = min(e["time"] for e in cache["cache"].values() if not isinstance(e["time"], str))

    def is_recorded(config: dict[str, Any]) -> bool:
        return tuple(config[k] for k in knobs) in legal

    random.seed(seed)
    np.random.seed(seed)
    with contextlib.redirect_stdout(io.StringIO()):
        results, _ = kernel_tuner.tune_kernel(
            "recorded", "__global__ void recorded() {}", PROBLEM, [], cache["tune_params"],
            restrictions=is_recorded,
            strategy=strategy, strategy_options={"max_fevals": trials}, simulation_mode=True,
            cache=file, lang="CUDA",
            block_size_names=[k for k in knobs if k.startswith("block_size")] or None,
        )  # fmt: skip
    reached: list[float] = []
    fastest = float("inf")
    for result in results:
        time = result.get("time")
        if time is not None and not isinstance(time, str):
            fastest = min(fastest, float(time))
        reached.append(best / fastest)
    return (reached + reached[-1:] * trials)[:trials]  # a strategy may end before its budget


def main() -> None:
    """Run one strategy and print its curves."""
    path, strategy, trials, *seeds = sys.argv[1:]
    warnings.simplefilter("ignore")
    cache = cache_of(json.loads(Path(path).read_text()))
    found: dict[str, Any] = {"version": importlib.metadata.version("kernel_tuner")}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(cache, file)
        file.flush()
        try:
            found["curves"] = [
                curve(cache, file.name, strategy, int(trials), int(seed)) for seed in seeds
            ]
        except Exception as error:  # noqa: BLE001  the border to code that is not ours
            found["error"] = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
