"""One tuning: the programs of all configs, their inputs, the tuner's answer, the winner."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilecore.errors import TileError, TuningFailed, TypeMismatch
from tilecore.gpu_target import GpuTarget
from tilecore.ir.expr import Pointer
from tilecore.ir.nodes import Buffer, PrimFunc
from tilecore.jit import JITImpl
from tilecore.kernel import JITKernel, input_parameters
from tilecore.logged import name_of, problem_of
from tilecore.profiler import TensorSupplyType, Tolerance, do_bench, listed, on_device, supply_all
from tilecore.recommending import device_name
from tilecore.target import Target, device_of_torch, emulates_gpus, parse_target
from tilecore.tile_config import TileConfig
from tilecore.tuning import Candidate, TuningAnswer, TuningTask, installed_tuner

LOG = logging.getLogger("tilecore.autotuner")
_INPUTS: ContextVar[Sequence[Any] | None] = ContextVar("autotune_inputs", default=None)
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

    Timing follows the workers' protocols, which repeat until the median is certain: TileLang's
    ``warmup``, ``rep`` and ``early_stop`` are accepted and have no effect.

    Attributes:
        supply_type: what inputs contain where none are given.
        supply_prog: makes the inputs from the parameters.
        ref_prog: what the kernel shall compute, on torch tensors.
        manual_check_prog: checks (found, expected) itself and raises.
        rtol, atol, max_mismatched_ratio: tolerance of the comparison.
        skip_check: do not compare.
        timeout: how long checking and timing a candidate may take, seconds.
    """

    supply_type: TensorSupplyType = TensorSupplyType.Auto
    supply_prog: Callable[..., Any] | None = None
    ref_prog: Callable[..., Any] | None = None
    manual_check_prog: Callable[..., Any] | None = None
    rtol: float = 1e-2
    atol: float = 1e-2
    max_mismatched_ratio: float = 0.01
    skip_check: bool = False
    timeout: float | None = None

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> ProfileOptions:
        """Return the options among TileLang's keywords."""
        return cls(**{k: v for k, v in keywords.items() if k in cls.__dataclass_fields__})

    @property
    def tolerance(self) -> Tolerance:
        """The tolerance of comparisons with the reference."""
        return Tolerance(
            atol=self.atol, rtol=self.rtol, max_mismatched_ratio=self.max_mismatched_ratio
        )


@dataclass(slots=True)
class AutotuneResult:
    """The winner of a tuning.

    Attributes:
        config: its keywords.
        latency: its time in ms.
        ref_latency: the reference's time in ms, None without one.
        kernel: the compiled kernel.
        failures: why each config that was left out was.
        is_stored: whether it was measured before, by this process or another one.
        is_measured: whether there is a time; where there is none of the GPUs that the program is
            for, the config is the recommended one.
    """

    config: dict[str, Any]
    latency: float
    kernel: JITKernel
    ref_latency: float | None = None
    failures: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    is_stored: bool = False
    is_measured: bool = True

    @property
    def libcode(self) -> str:
        """The program of the winner."""
        return self.kernel.get_kernel_source()


@dataclass(frozen=True, slots=True)
class _Traced:
    """A config with the program it makes and that program's inputs."""

    config: dict[str, Any]
    arguments: tuple[Sequence[Any], Mapping[str, Any]]
    program: PrimFunc
    inputs: Sequence[Any]
    expected: Sequence[Any] | None


class Tuning:
    """One tuning: the programs of all configs, their inputs, the tuner's answer, the winner."""

    def __init__(
        self,
        impl: JITImpl,
        configs: Sequence[Any],
        options: ProfileOptions,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.impl, self.options = impl, options
        self._args, self._kwargs = tuple(args), dict(kwargs or {})
        self.failures: list[tuple[dict[str, Any], str]] = []
        self._inputs: dict[Any, Sequence[Any]] = {}
        self._expected: dict[Any, Sequence[Any] | None] = {}
        found = [self._trace(config) for config in configs]
        self.traced = [t for t in found if t is not None]

    def run(self) -> AutotuneResult:
        """Return the fastest config; where none can be measured, the first one that compiles.

        Raises:
            TuningFailed: no config compiles and computes right (TC503).
        """
        if self.traced and self._is_emulated():
            found = self._first_that_compiles(self.traced)
            if found is not None:
                return found
        elif self.traced:
            answer = installed_tuner()(self._task())
            found = self._recommended(answer) if answer.unmeasured else self._fastest(answer)
            if found is not None:
                return found
        reasons = "; ".join(sorted({reason for _, reason in self.failures})[:3])
        raise TuningFailed(count=len(self.failures), reason=reasons or "no configs were given")

    def _is_emulated(self) -> bool:
        """Return whether what is compiled runs on an emulator."""
        target = parse_target(self.impl.options.target)
        return emulates_gpus() or (isinstance(target, Target) and target.is_emulated)

    def _fastest(self, answer: TuningAnswer) -> AutotuneResult | None:
        """Return the fastest config that passes the author's own check."""
        for position, reason in sorted(answer.failures.items()):
            self._leave_out(self.traced[position].config, reason)
        for position, time_s in answer.times_s.items():
            result = self._result(self.traced[position], time_s, is_stored=answer.is_stored)
            if result is not None:
                return result
        return None

    def _recommended(self, answer: TuningAnswer) -> AutotuneResult | None:
        """Return the config expected to be the fastest of those that compile, and say so."""
        order = [self.traced[position] for position in answer.times_s]
        found = self._first_that_compiles(order, checks=False)
        if found is None:
            return None
        found.is_measured, found.kernel.latency = False, None
        LOG.warning(
            "%s: config %s is the recommended one, nothing was measured. "
            "Run this where the device is to measure it", answer.unmeasured, found.config,
        )  # fmt: skip
        return found

    def _first_that_compiles(
        self, candidates: Sequence[_Traced], *, checks: bool = True
    ) -> AutotuneResult | None:
        """Return the first config with code; times on the emulator would mean nothing."""
        for traced in candidates:
            try:
                found = self._result(traced, math.nan, is_stored=False, checks=checks)
            except TileError as error:
                self._leave_out(traced.config, str(error).strip().splitlines()[0])
                continue
            if found is not None:
                return found
        return None

    def _task(self) -> TuningTask:
        configs = _stored_forms([t.config for t in self.traced])
        options, target = self.impl.options, parse_target(self.impl.options.target)
        first = self.traced[0]
        return TuningTask(
            name=name_of(self.impl.wrapped),
            problem=problem_of(input_parameters(first.program), first.inputs),
            candidates=[
                Candidate(
                    config=c,
                    program=t.program,
                    inputs=t.inputs,
                    expected=t.expected,
                    lowering=self.impl.lowering(t.arguments[1]),
                )
                for c, t in zip(configs, self.traced, strict=True)
            ],
            target=target.name,
            device=(device_name(options.target) or "") if isinstance(target, GpuTarget) else "",
            knobs=options.config,
            tolerance=self.options.tolerance,
            run_timeout_s=self.options.timeout,
        )

    # --- candidates -----------------------------------------------------------------------

    def _trace(self, config: Any) -> _Traced | None:
        is_named = isinstance(config, Mapping)
        shown = dict(config) if is_named else {"args": tuple(config)}
        named = {k: v for k, v in shown.items() if k not in COMPILER_KEYS} if is_named else {}
        args = self._args if is_named else (*self._args, *config)
        arguments = (args, {**self._kwargs, **named})
        try:
            program = self.impl.program(*arguments[0], **arguments[1])
        except (TileError, AssertionError, ValueError) as error:
            self._leave_out(shown, str(error).strip().splitlines()[0])
            return None
        return _Traced(shown, arguments, program, *self._data(program))

    def _data(self, program: PrimFunc) -> tuple[Sequence[Any], Sequence[Any] | None]:
        """Return inputs and expected outputs: the same ones for all programs they fit."""
        params = input_parameters(program)
        key = tuple(_kind(p) for p in params)
        if key not in self._inputs:
            self._inputs[key] = self._supply(params)
            self._expected[key] = self._reference(self._inputs[key])
        return self._inputs[key], self._expected[key]

    def _supply(self, params: Sequence[Any]) -> Sequence[Any]:
        given = get_autotune_inputs()
        numbers = [p for p in params if not isinstance(p, Buffer)]
        if any(isinstance(p, Pointer) for p in numbers):
            raise TypeMismatch(
                expected="tensors and numbers as arguments of a program that is tuned",
                found="an address, which means nothing to a worker process",
            )
        if given is not None:
            return list(given)
        if self.options.supply_prog is not None:
            return listed(self.options.supply_prog(list(params)))
        if numbers:
            raise TypeMismatch(
                expected=f"a value of `{numbers[0].name}` to tune with",
                found="nothing",
                hint="call it inside `with set_autotune_inputs(...)`, or give supply_prog=",
            )
        made = supply_all(params, self.options.supply_type, np.random.default_rng(0))
        return on_device(made, self._tensors_on())

    def _tensors_on(self) -> str:
        """Return where references of this tuning find their inputs."""
        target = parse_target(self.impl.options.target)
        device = device_of_torch() if isinstance(target, GpuTarget) else None
        return "cuda" if device is not None and device.kind == target.kind else "cpu"

    def _reference(self, inputs: Sequence[Any]) -> Sequence[Any] | None:
        if self.options.ref_prog is None or self.options.skip_check:
            return None
        if self.options.manual_check_prog is not None:
            return None  # it compares in this process, see _result
        return listed(self.options.ref_prog(*inputs))

    # --- the winner -----------------------------------------------------------------------

    def _result(
        self, winner: _Traced, time_s: float, *, is_stored: bool, checks: bool = True
    ) -> AutotuneResult | None:
        kernel = self.impl.compile(*winner.arguments[0], **winner.arguments[1])
        options = self.options if checks else ProfileOptions()
        inputs = winner.inputs
        if options.manual_check_prog is not None and options.ref_prog is not None:
            try:
                options.manual_check_prog(kernel(*inputs), options.ref_prog(*inputs))
            except (TileError, AssertionError, ValueError) as error:
                self._leave_out(winner.config, str(error).strip().splitlines()[0])
                return None
        if options.ref_prog is not None:
            kernel.ref_latency = do_bench(functools.partial(options.ref_prog, *inputs))
        kernel.latency, kernel.config = time_s * 1e3, winner.config
        return AutotuneResult(
            config=winner.config, latency=kernel.latency, kernel=kernel,
            ref_latency=kernel.ref_latency, failures=self.failures, is_stored=is_stored,
        )  # fmt: skip

    def _leave_out(self, config: dict[str, Any], reason: str) -> None:
        self.failures.append((config, reason))
        LOG.warning("config %s left out: %s", config, reason)


def _kind(param: Any) -> str:
    """Return what a parameter takes, as text: its extents and element type."""
    if isinstance(param, Buffer):
        return f"{param.name} {'x'.join(str(e) for e in param.shape)} {param.dtype}"
    return f"{param.name} {param.dtype}"


def _stored_forms(configs: Sequence[Mapping[str, Any]]) -> list[TileConfig]:
    """Return the configs with plain values only; those that look alike then are numbered."""
    found: list[TileConfig] = []
    for config in configs:
        plain = {k: v if isinstance(v, (int, str, bool)) else str(v) for k, v in config.items()}
        made = TileConfig.of(plain)
        number = 2
        while made in found:
            made, number = TileConfig.of(plain, number=number), number + 1
        found.append(made)
    return found
