"""``@tilelang.autotune`` and ``AutoTuner``: the fastest of given configs that computes right.

Every config is traced here; the installed tuner (``tilecore.tuning``) has worker processes compile,
check and time the programs, and remembers what it measured: the same programs on the same inputs,
machine and toolchain are not measured again, in this process or a later one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.jit import JITImpl, jit
from tilecore.kernel import JITKernel
from tilecore.recommending import ProgramAdvice
from tilecore.torch_trace import is_traced, untraced
from tilecore.tuning_run import (
    COMPILER_KEYS,
    AutotuneResult,
    ProfileOptions,
    Tuning,
    get_autotune_inputs,
    set_autotune_inputs,
)

__all__ = [
    "AutoTuneImpl", "AutoTuner", "AutotuneResult", "ProfileOptions", "autotune",
    "get_autotune_inputs", "set_autotune_inputs",
]  # fmt: skip
Configs = Sequence[Any] | Callable[..., Sequence[Any]]


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
        """Tune (see ProfileOptions for the keywords).

        Raises:
            TuningFailed: no config compiles and computes right (TC503).
        """
        _ = warmup, rep
        options = ProfileOptions.of({**self._profile, **keywords})
        made = self.fn if isinstance(self.fn, JITImpl) else jit(self.fn, **self._compile)
        configs = self.configs() if callable(self.configs) else self.configs
        return Tuning(made, list(configs), options).run()


class AutoTuneImpl:
    """A ``@jit`` function decorated with ``@autotune``: the first call with new arguments tunes."""

    def __init__(
        self,
        impl: JITImpl,
        configs: Configs,
        options: ProfileOptions,
        do_not_specialize: Sequence[str] = (),
    ) -> None:
        self.impl, self.configs, self.options = impl, configs, options
        self._unspecialized = frozenset(do_not_specialize)
        self.results: dict[Any, AutotuneResult] = {}
        functools.update_wrapper(self, impl.wrapped, updated=())

    def __deepcopy__(self, known: Any) -> AutoTuneImpl:
        """Return this function: copies of a model share it, and what was tuned."""
        return self

    def __reduce__(self) -> str:
        """Return where another process finds it: by its name."""
        return str(self.impl.wrapped.__qualname__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Lazy: return the tuned kernel. Eager: run it on the tensors.

        The keyword ``__return_kernel`` asks for the kernel in both styles.
        """
        if is_traced():
            return untraced(self, *args, **kwargs)
        wants_kernel = kwargs.pop("__return_kernel", False)
        kernel = self.compile(*args, **kwargs)
        tensors = self.impl.tensors(args, kwargs)
        return kernel(*tensors) if tensors and not wants_kernel else kernel

    def compile(self, *args: Any, **kwargs: Any) -> JITKernel:
        """Return the tuned kernel for the given arguments."""
        names = inspect.signature(self.impl.function).parameters
        configs = [c for c in self._configs(args, kwargs) if isinstance(c, Mapping)]
        fixed = (set(kwargs) | set(list(names)[: len(args)])) - self._unspecialized
        if configs and all(set(c) <= fixed for c in configs):
            return self.impl.compile(*args, **kwargs)  # the caller has chosen
        key = self._key(args, kwargs)
        if key not in self.results:
            tensors = self.impl.tensors(args, kwargs)
            with set_autotune_inputs(tensors) if tensors else nullcontext():
                tuning = Tuning(self.impl, configs, self.options, args, kwargs)
                self.results[key] = tuning.run()
            return self.results[key].kernel
        config = {k: v for k, v in self.results[key].config.items() if k not in COMPILER_KEYS}
        return self.impl.compile(*args, **{**kwargs, **config})

    def recommend(
        self, *args: Any, space: Mapping[str, Any] | None = None, **asked: Any
    ) -> ProgramAdvice:
        """Return ranked values of the open parameters (see ``JITImpl.recommend``).

        Without ``space`` the values that occur in the configs are the ones to choose from.
        """
        values: dict[str, dict[Any, None]] = {}
        own = {k: v for k, v in asked.items() if k in self.impl.signature.parameters}
        for config in self._configs(args, own):
            for knob, value in config.items() if isinstance(config, Mapping) else ():
                if knob not in asked and knob not in COMPILER_KEYS:
                    values.setdefault(knob, {})[value] = None
        given = {k: tuple(v) for k, v in values.items()} if space is None else space
        return self.impl.recommend(*args, space=given, **asked)

    def _key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what calls have in common that share a config."""
        signature = inspect.signature(self.impl.function)
        own = {k: v for k, v in kwargs.items() if k in signature.parameters}
        named = {**kwargs, **signature.bind_partial(*args, **own).arguments}
        kept = {k: v for k, v in named.items() if k not in self._unspecialized}
        return self.impl.key((), kept)

    def _configs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        if not callable(self.configs):
            return list(self.configs)
        try:
            inspect.signature(self.configs).bind(*args, **kwargs)
        except TypeError:
            return list(self.configs())
        return list(self.configs(*args, **kwargs))


def autotune(
    fn: Any = None,
    *,
    configs: Configs | None = None,
    do_not_specialize: Sequence[str] | None = None,
    **keywords: Any,
) -> Any:
    """Decorate a ``@tilelang.jit`` function: ``@tilelang.autotune(configs=[...])`` above it.

    Args:
        fn: the function; given where the decorator is used without parentheses.
        configs: keywords to try, as a list of mappings, or a function that returns it.
        do_not_specialize: parameters whose values may change without a new tuning: the kernel is
            made for the new values with the config that was found for the first ones; they are
            tuned although a call gives them.
        keywords: how candidates are checked and timed (see ProfileOptions), where the jit below
            does not say it; other keywords of TileLang are accepted.

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
        options = ProfileOptions.of({**impl.options.ignored, **keywords})
        return AutoTuneImpl(impl, configs, options, do_not_specialize or ())

    return decorate if fn is None else decorate(fn)
