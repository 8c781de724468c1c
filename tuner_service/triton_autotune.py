"""``@autotune`` for Triton kernels: Triton's own, which measures fewer configs, and none twice.

    from tuner_service.triton_autotune import autotune

    @autotune(configs=[...], key=["M", "N", "K"])
    @triton.jit
    def kernel(...): ...

Triton times every config anew in each process. Here the search engine chooses which ones are timed,
beginning with what was fast for other values of ``key`` and on other devices, and what was found is
kept in this machine's database or at a service: other processes and machines with such a device
take it as it is. Compiling, timing, pruning and hooks are Triton's.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton
from triton.runtime.autotuner import Autotuner

from recommender.external import Value
from tilecore.errors import TileError
from tilecore.tile_config import digest
from tuner_service.errors import NothingMeasured
from tuner_service.study import Study

LOG = logging.getLogger(__name__)
TRIALS = 24
LEASE_S = 120.0  # to compile and time one config, before another process gets it
LONGEST_TEXT = 64  # of a value
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")  # of a config beside its kwargs


def autotune(
    configs: Sequence[Any], key: Sequence[str], *, trials: int = TRIALS,
    service: str | None = None, **options: Any,
) -> Callable[[Any], Autotuner]:  # fmt: skip
    """Decorate a kernel under ``@triton.jit`` as ``triton.autotune`` does.

    Args:
        configs: ``triton.Config`` objects.
        key: names of arguments; for each set of their values configs are chosen anew.
        trials: how many configs are timed at most, by all processes together.
        service: address of the service that keeps what is found; None: that of
            TILECORE_SERVICE_URL, else this machine's database.
        options: further arguments of ``triton.autotune``.
    """

    def decorate(kernel: Any) -> Autotuner:
        given = {"reset_to_zero": None, "restore_value": None, **options}
        return _Searching(trials, service, kernel, kernel.arg_names, configs, key, **given)

    return decorate


class _Searching(Autotuner):  # type: ignore[misc]
    """Triton's tuner, to which one config is left when it has pruned what to time."""

    def __init__(self, trials: int, service: str | None, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._trials, self._service = trials, service
        self._is_compiling = False
        self._chosen: tuple[Any, float] | None = None  # config and seconds

    def warmup(self, *args: Any, **kwargs: Any) -> Any:
        """Compile for such arguments, which need not be there, and time nothing."""
        self._is_compiling = True
        try:
            return super().warmup(*args, **kwargs)
        finally:
            self._is_compiling = False

    def prune_configs(self, kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the config to run; all of them to compile alone, or where no study can be kept."""
        self._chosen = None
        left: list[Any] = super().prune_configs(kwargs)
        if len(left) < 2 or self._is_compiling:
            return left
        arguments = {**self.nargs, **kwargs}
        known = dict(zip(map(_frozen, found := described(left)), left, strict=True))

        def measure(config: Mapping[str, Value]) -> float:
            chosen = known[_frozen(config)]
            times_ms = self._bench(*self.nargs.values(), config=chosen, **kwargs)
            return float(times_ms[0] if isinstance(times_ms, list | tuple) else times_ms) / 1e3

        try:
            best = self._study(arguments, found).optimize(measure, catch=(), lease_s=LEASE_S)
            chosen, time_s = known[_frozen(best.config)], best.time_s
        except NothingMeasured:
            chosen, time_s = left[0], math.inf  # Triton tells in its words why it cannot run
        except TileError as error:
            LOG.warning("%s is timed by Triton alone: %s", self.base_fn.__name__, error.message)
            return left
        self.pre_hook({**arguments, **chosen.all_kwargs()}, reset_only=True)
        self._chosen = chosen, time_s
        return [chosen]

    def _bench(self, *args: Any, config: Any, **meta: Any) -> Any:
        """Return the times of a config (ms); of the one chosen as they are known (before 3.9)."""
        if self._chosen is not None and config is self._chosen[0]:
            return [self._chosen[1] * 1e3] * 3
        return super()._bench(*args, config=config, **meta)

    def _study(self, arguments: Mapping[str, Any], configs: Sequence[Mapping[str, Value]]) -> Study:
        """Return the study that all share who tune this kernel for such arguments and devices."""
        function = self.base_fn
        name = f"triton {function.__module__}.{function.__qualname__}"[-200:]
        problem = {k: _plain(arguments[k]) for k in self.keys if k in arguments}
        types = {
            f"type_of_{k}": str(arguments[k].dtype).removeprefix("torch.")
            for k in self.arg_names
            if hasattr(arguments.get(k), "dtype")
        }
        hardware = device()
        source = getattr(self.fn, "cache_key", None) or inspect.getsource(function)
        asked = [name, source, problem, types, hardware, triton.__version__, configs, self._trials]
        return Study(
            name, configurations=configs, problem={**problem, **types}, hardware=hardware,
            max_trials=self._trials, key=f"triton-{digest(asked)}", service=self._service,
        )  # fmt: skip


def described(configs: Sequence[Any]) -> list[dict[str, Value]]:
    """Return configs of Triton as configurations of a study: numbers, or texts, by name.

    Those that look alike (they differ in hooks) are numbered.
    """
    whole = [
        {**config.kwargs, **{name: getattr(config, name, None) for name in OPTIONS}}
        for config in configs
    ]
    names = list(dict.fromkeys(name for config in whole for name in config))
    columns = {name: _column([config.get(name) for config in whole]) for name in names}
    found = [{name: columns[name][i] for name in names} for i in range(len(whole))]
    twins: dict[Any, int] = {}
    for config in found:
        alike = _frozen(config)
        twins[alike] = twins.get(alike, -1) + 1
        config["twin"] = twins[alike]
    if len(twins) == len(found):
        for config in found:
            del config["twin"]
    return found


def device() -> str:
    """Return the name of the device that Triton runs kernels on."""
    if triton.knobs.runtime.interpret or not torch.cuda.is_available():
        return "Triton's interpreter"
    return str(torch.cuda.get_device_name())


def _column(values: Sequence[Any]) -> list[Value]:
    """Return the values of one parameter: numbers if all are, else texts; None of numbers is -1."""
    if all(v is None or (isinstance(v, bool | int | float) and math.isfinite(v)) for v in values):
        return [-1 if v is None else v for v in values]
    return [str(v)[:LONGEST_TEXT] for v in values]


def _plain(value: Any) -> bool | int | str:
    return value if isinstance(value, bool | int) else str(value)[:LONGEST_TEXT]


def _frozen(config: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(config.items()))
