"""``@tilelang.autotune`` and ``AutoTuner``: the fastest of given configs that computes right.

Every config is compiled; what cannot be compiled, fails, or disagrees with the reference is left
out with its reason. The survivors are timed interleaved, so that a disturbance of the machine hits
all of them alike. Results are kept per process by shape and arguments.
"""

from __future__ import annotations

import functools
import inspect
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilecore.errors import TileError, TuningFailed, TypeMismatch
from tilecore.jit import JITImpl, jit
from tilecore.kernel import JITKernel
from tilecore.profiler import Profiler, TensorSupplyType

LOG = logging.getLogger("tilecore.autotuner")
Configs = Sequence[Any] | Callable[..., Sequence[Any]]
_INPUTS: ContextVar[Sequence[Any] | None] = ContextVar("autotune_inputs", default=None)
ROUNDS = 5
EARLY_STOP_FACTOR = 1.5
COMPILER_KEYS = ("pass_configs",)  # of a config: not for the program, and without effect on a CPU


@contextmanager
def set_autotune_inputs(*tensors: Any) -> Iterator[None]:
    """Tune with these tensors inside the block (one list of them is taken as that list)."""
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    token = _INPUTS.set(tuple(given))
    try:
        yield
    finally:
        _INPUTS.reset(token)


def get_autotune_inputs() -> Sequence[Any] | None:
    """Return the tensors of the enclosing ``set_autotune_inputs``, None outside."""
    return _INPUTS.get()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """How candidates are checked and timed.

    Attributes:
        warmup: time to run before a sample, ms.
        rep: time of all samples of a candidate, ms.
        supply_type: what inputs contain where none are given.
        supply_prog: makes the inputs from the parameters.
        ref_prog: what the kernel shall compute, on torch tensors.
        manual_check_prog: checks (found, expected) itself and raises.
        rtol, atol, max_mismatched_ratio: tolerance of the comparison.
        skip_check: do not compare.
        early_stop: leave a candidate out after one sample that is slower than the best by
            ``early_stop_factor``.
    """

    warmup: float = 25.0
    rep: float = 100.0
    supply_type: TensorSupplyType = TensorSupplyType.Auto
    supply_prog: Callable[..., Any] | None = None
    ref_prog: Callable[..., Any] | None = None
    manual_check_prog: Callable[..., Any] | None = None
    rtol: float = 1e-2
    atol: float = 1e-2
    max_mismatched_ratio: float = 0.01
    skip_check: bool = False
    early_stop: bool = False
    early_stop_factor: float = EARLY_STOP_FACTOR


@dataclass(slots=True)
class AutotuneResult:
    """The winner of a tuning.

    Attributes:
        config: its keywords.
        latency: its time in ms.
        ref_latency: the reference's time in ms, None without one.
        kernel: the compiled kernel.
        failures: why each config that was left out was.
    """

    config: dict[str, Any]
    latency: float
    kernel: JITKernel
    ref_latency: float | None = None
    failures: list[tuple[dict[str, Any], str]] = field(default_factory=list)

    @property
    def libcode(self) -> str:
        """The program of the winner."""
        return self.kernel.get_kernel_source()


def tune(
    build: Callable[..., JITKernel], configs: Sequence[Any], options: ProfileOptions
) -> AutotuneResult:
    """Return the fastest config.

    Args:
        build: makes the kernel of a config, given as keywords.
        configs: mappings of keywords, or sequences of arguments.
        options: checking and timing.

    Raises:
        TuningFailed: no config compiles and computes right (TC503).
    """
    failures: list[tuple[dict[str, Any], str]] = []
    kernels: list[tuple[dict[str, Any], JITKernel]] = []
    inputs: list[Any] | None = None
    for config in configs:
        shown = dict(config) if isinstance(config, Mapping) else {"args": tuple(config)}
        arguments = {k: v for k, v in shown.items() if k not in COMPILER_KEYS}
        try:
            kernel = build(**arguments) if isinstance(config, Mapping) else build(*config)
            if inputs is None:
                inputs = _inputs(kernel, options)
            _check(kernel, inputs, options)
        except (TileError, AssertionError, ValueError) as error:
            failures.append((shown, str(error).strip().splitlines()[0]))
            LOG.warning("config %s left out: %s", shown, failures[-1][1])
            continue
        kernels.append((shown, kernel))
    if not kernels or inputs is None:
        reasons = "; ".join(sorted({reason for _, reason in failures})[:3])
        raise TuningFailed(count=len(failures), reason=reasons or "no configs were given")
    calls = [functools.partial(kernel, *inputs) for _, kernel in kernels]
    if options.ref_prog is not None:
        calls.append(functools.partial(options.ref_prog, *inputs))
    times = _interleaved(calls, options)
    best = min(range(len(kernels)), key=lambda i: times[i])
    config, kernel = kernels[best]
    kernel.latency, kernel.config = times[best], config
    kernel.ref_latency = times[-1] if options.ref_prog is not None else None
    return AutotuneResult(
        config=config, latency=times[best], kernel=kernel, ref_latency=kernel.ref_latency,
        failures=failures,
    )  # fmt: skip


def _inputs(kernel: JITKernel, options: ProfileOptions) -> list[Any]:
    given = get_autotune_inputs()
    if given is not None:
        return list(given)
    if options.supply_prog is not None:
        return list(options.supply_prog(kernel.params))
    return Profiler(kernel, options.supply_type).inputs()


def _check(kernel: JITKernel, inputs: Sequence[Any], options: ProfileOptions) -> None:
    if options.ref_prog is None or options.skip_check:
        kernel(*inputs)
        return
    if options.manual_check_prog is not None:
        options.manual_check_prog(kernel(*inputs), options.ref_prog(*inputs))
        return
    Profiler(kernel).assert_allclose(
        options.ref_prog, inputs, options.atol, options.rtol, options.max_mismatched_ratio
    )


def _interleaved(calls: Sequence[Callable[[], Any]], options: ProfileOptions) -> list[float]:
    """Return the median time of each call in ms; infinite where stopped early."""
    samples: list[list[float]] = [[] for _ in calls]
    for round_ in range(ROUNDS):
        for i, call in enumerate(calls):
            if samples[i] and samples[i][-1] == np.inf:
                continue
            samples[i].append(_sample_ms(call, options.rep / ROUNDS))
        if options.early_stop and round_ == 0:
            limit = min(s[0] for s in samples) * options.early_stop_factor
            samples = [s if s[0] <= limit else [np.inf] for s in samples]
    return [statistics.median(s) for s in samples]


def _sample_ms(call: Callable[[], Any], budget_ms: float) -> float:
    start = time.perf_counter()
    call()
    once_ms = (time.perf_counter() - start) * 1e3
    count = max(1, min(1000, int(budget_ms / max(once_ms, 1e-3))))
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) * 1e3 / count


def _profile_options(keywords: Mapping[str, Any]) -> ProfileOptions:
    known = {k: v for k, v in keywords.items() if k in ProfileOptions.__dataclass_fields__}
    return ProfileOptions(**known)


class AutoTuner:
    """``AutoTuner.from_kernel(fn, configs).set_compile_args(…).set_profile_args(…).run()``."""

    def __init__(self, fn: Callable[..., Any], configs: Configs) -> None:
        self.fn, self.configs = fn, configs
        self._compile: dict[str, Any] = {}
        self._profile: dict[str, Any] = {}

    @classmethod
    def from_kernel(cls, kernel: Callable[..., Any], configs: Configs) -> AutoTuner:
        """Return the tuner of a function of the configs' keywords that returns a program."""
        return cls(kernel, configs)

    def set_compile_args(self, **keywords: Any) -> AutoTuner:
        """Set the keywords of ``tilelang.jit`` (out_idx, target, pass_configs, …)."""
        self._compile = keywords
        return self

    def set_profile_args(self, **keywords: Any) -> AutoTuner:
        """Set how candidates are checked and timed (see ProfileOptions)."""
        self._profile = keywords
        return self

    def run(self, warmup: float = 25.0, rep: float = 100.0, **keywords: Any) -> AutotuneResult:
        """Tune; raises TuningFailed (TC503) where no config works."""
        options = _profile_options({**self._profile, **keywords, "warmup": warmup, "rep": rep})
        made = self.fn if isinstance(self.fn, JITImpl) else jit(self.fn, **self._compile)
        configs = self.configs() if callable(self.configs) else self.configs
        return tune(made.compile, list(configs), options)


class AutoTuneImpl:
    """A ``@jit`` function decorated with ``@autotune``: the first call with new arguments tunes."""

    def __init__(
        self, impl: JITImpl, configs: Configs, options: ProfileOptions, free: Sequence[str] = ()
    ) -> None:
        self.impl, self.configs, self.options, self.free = impl, configs, options, free
        self.results: dict[Any, AutotuneResult] = {}
        functools.update_wrapper(self, impl.wrapped, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Lazy: return the tuned kernel. Eager: run it on the tensors."""
        kernel = self.compile(*args, **kwargs)
        tensors = self.impl.tensors(args, kwargs)
        return kernel(*tensors) if tensors else kernel

    def compile(self, *args: Any, **kwargs: Any) -> JITKernel:
        """Return the tuned kernel for the given arguments."""
        names = inspect.signature(self.impl.function).parameters
        configs = [c for c in self._configs(args, kwargs) if isinstance(c, Mapping)]
        fixed = (set(kwargs) | set(list(names)[: len(args)])) - set(self.free)
        if configs and all(set(c) <= fixed for c in configs):
            return self.impl.compile(*args, **kwargs)  # the caller has chosen
        key = self.impl.key(args, kwargs)
        if key not in self.results:
            tensors = self.impl.tensors(args, kwargs)
            inputs = tensors or get_autotune_inputs()
            token = _INPUTS.set(inputs)
            try:
                build = functools.partial(self._build, args, kwargs)
                self.results[key] = tune(build, configs, self.options)
            finally:
                _INPUTS.reset(token)
        return self.results[key].kernel

    def _build(self, args: Sequence[Any], kwargs: Mapping[str, Any], **config: Any) -> JITKernel:
        return self.impl.compile(*args, **{**kwargs, **config})

    def _configs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        if not callable(self.configs):
            return list(self.configs)
        try:
            inspect.signature(self.configs).bind(*args, **kwargs)
        except TypeError:
            return list(self.configs())
        return list(self.configs(*args, **kwargs))


def autotune(fn: Any = None, *, configs: Configs | None = None, **keywords: Any) -> Any:
    """Decorate a ``@tilelang.jit`` function: ``@tilelang.autotune(configs=[...])`` above it.

    Args:
        fn: the function; given where the decorator is used without parentheses.
        configs: keywords to try, as a list of mappings, or a function that returns it.
        keywords: how candidates are checked and timed (see ProfileOptions), where the jit below
            does not say it; ``do_not_specialize``: parameters that are tuned although the call
            gives them; other keywords of TileLang are accepted.

    Raises:
        TypeMismatch: no configs, or something that ``@tilelang.jit`` did not make (TC202).
    """
    if configs is None:
        raise TypeMismatch(expected="configs=[{...}, ...] in @autotune", found="none")

    def decorate(impl: Any) -> AutoTuneImpl:
        if not isinstance(impl, JITImpl):
            raise TypeMismatch(
                expected="a function decorated with @tilelang.jit below @autotune",
                found=type(impl).__name__,
            )
        options = _profile_options({**impl.options.ignored, **keywords})
        return AutoTuneImpl(impl, configs, options, keywords.get("do_not_specialize") or ())

    return decorate if fn is None else decorate(fn)
