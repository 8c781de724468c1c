"""tilelang.jit: from a decorated function to a kernel that can be called."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any

from tilecore.errors import ArgumentError, SourceUnavailable, TypeMismatch
from tilecore.frontend.eager import (
    EagerSignature,
    eager_signature,
    is_eager,
    trace_eager,
)
from tilecore.frontend.signature import (
    PointerSpec,
    TensorSpec,
    bound_call,
    is_tensor,
    solve_constants,
)
from tilecore.frontend.trace import resolve_annotations
from tilecore.ir.dtype import DType
from tilecore.ir.nodes import PrimFunc
from tilecore.jit_calls import Found, key_of, likeness
from tilecore.jit_compile import (
    JitOptions,
    build,
    compile,
    mark_outputs,
    options_of,
    par_compile,
)
from tilecore.kernel import JITKernel
from tilecore.logged import name_of
from tilecore.recommending import (
    ASKED,
    ASKED_OF_A_SERVICE,
    LOWERING,
    OpenProgram,
    ProgramAdvice,
    device_name,
    installed_recommender,
    open_program,
)
from tilecore.runtime.memo import Memo
from tilecore.tile_config import KnobValue
from tilecore.torch_trace import is_traced, labelled

OF_A_KERNEL = ("artifact", "latency", "out_idx", "prim_func")  # attributes that each has itself
NO_KNOBS = (TensorSpec, PointerSpec, DType)  # annotations of what a call passes
_CACHE_IS_ON: ContextVar[bool] = ContextVar("tilecore_jit_cache", default=True)


def enable_cache() -> None:
    """Let ``@jit`` functions keep the kernels they have built in this process (the default)."""
    _CACHE_IS_ON.set(True)


def disable_cache() -> None:
    """Make ``@jit`` functions trace and build anew on every call."""
    _CACHE_IS_ON.set(False)


def is_cache_enabled() -> bool:
    """Return whether ``@jit`` functions keep kernels."""
    return _CACHE_IS_ON.get()


class JITImpl:
    """A function decorated with ``@tilelang.jit``.

    Lazy style: the function returns a program; calling it returns the kernel. Eager style: the
    function is the kernel; calling it with tensors runs it. ``.compile(...)`` returns the kernel
    in both.
    """

    def __init__(
        self, fn: Callable[..., Any] | PrimFunc, options: JitOptions, local_names: Mapping[str, Any]
    ) -> None:
        self.wrapped: Any = fn
        self.options = options
        self._locals = dict(local_names) if _has_text_annotations(fn) else {}
        self._kernels: dict[Any, JITKernel] = {}
        self._signatures: dict[Any, EagerSignature] = {}
        self._calls: Memo[Found] = Memo()
        self.label = labelled(self)
        if isinstance(fn, FunctionType):
            functools.update_wrapper(self, fn)

    def __deepcopy__(self, known: Any) -> JITImpl:
        """Return this function: copies of a model share it, and the kernels that it has built."""
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Return where another process finds it: by its name, or as the program that it is of."""
        if isinstance(self.wrapped, PrimFunc):
            return type(self), (self.wrapped, self.options, {})
        return str(self.wrapped.__qualname__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Lazy: return the kernel. Eager: run the kernel and return its outputs.

        The keyword ``__return_kernel`` asks for the kernel in both styles.
        """
        if is_traced():
            from tilecore import torch_ops

            return torch_ops.call_function(self, args, kwargs)
        if kwargs.pop("__return_kernel", False) or not self._is_eager:
            return self.compile(*args, **kwargs)
        found = self.find(args, kwargs)
        assert found is not None
        return found.kernel(*found.arguments(args, kwargs))

    def compile(self, *args: Any, **kwargs: Any) -> JITKernel:
        """Return the kernel for the given arguments (eager: values of T.const names by keyword).

        Knobs of the CPU's lowering (micro_m, micro_n, pack_a, pack_b) may be given like arguments.
        """
        kwargs, options = self._divided(kwargs)
        if self._is_eager:
            static, constants = self._constants(args, kwargs)
            return self._kernel(static, constants, options)
        key = (key_of(args), key_of(kwargs), key_of(options.config))
        if key not in self._kernels or not _CACHE_IS_ON.get():
            self._kernels[key] = build(self.get_tir(*args, **kwargs), options)
        return self._kernels[key]

    def get_tir(self, *args: Any, **kwargs: Any) -> PrimFunc:
        """Return the traced program for the given arguments.

        Raises:
            TypeMismatch: a lazy function has other parameters, or returned something other than a
                program (TC202).
        """
        if isinstance(self.wrapped, PrimFunc):
            return self.wrapped
        kwargs, _ = self._divided(kwargs)
        if self._is_eager:
            static, constants = self._constants(args, kwargs)
            return trace_eager(self.function, static, self._annotations, constants)
        bound_call(self.function, self.signature.bind, args, kwargs)
        func = self.wrapped(*args, **kwargs)
        if not isinstance(func, PrimFunc):
            raise TypeMismatch(
                expected=f"`{self.function.__name__}` to return a program made by @T.prim_func",
                found=f"{type(func).__name__}",
                hint="or write it in the eager style, with `with T.Kernel(...)` in its own body",
            )
        return func

    def program(self, *args: Any, **kwargs: Any) -> PrimFunc:
        """Return the traced program for the given arguments with its outputs marked."""
        return mark_outputs(self.get_tir(*args, **kwargs), self.options.out_idx)

    def get_kernel_source(self, *args: Any, **kwargs: Any) -> str:
        """Return the source of the kernel for the given arguments."""
        return self.compile(*args, **kwargs).get_kernel_source()

    def par_compile(self, configs: Sequence[Any], **_: Any) -> list[JITKernel]:
        """Return the kernel of each config (a mapping of keywords, or a tuple of arguments)."""
        return [self.compile(**c) if isinstance(c, Mapping) else self.compile(*c) for c in configs]

    def recommend(self, *args: Any, **given: Any) -> ProgramAdvice:
        """Return ranked values of the open parameters: those named like knobs and not given.

        Args:
            args: arguments, which stay as they are.
            given: the same by keyword (eager: values of T.const names, too); ``target``: the device
                ("h100"; without it that of ``jit``, else this machine); ``top_k``: how many
                configs; ``space``: values to choose from, by parameter or knob of the lowering;
                ``cores``: of a CPU; ``service``: address of a service that is to answer;
                ``problem``: for it, values of sizes that the program finds out at its call.

        Raises:
            TileError: the program's own fault, or nothing to choose from, by class.
        """
        own = () if isinstance(self.wrapped, PrimFunc) else self.signature.parameters
        names = (*ASKED, *(k for k in ASKED_OF_A_SERVICE if k not in own))
        asked = {k: given.pop(k) for k in names if k in given}
        return installed_recommender()(self.question(args, given, **asked))

    def question(
        self, args: Sequence[Any], given: Mapping[str, Any], target: str | None = None, **asked: Any
    ) -> OpenProgram:
        """Return what ``recommend`` asks of a recommender."""
        if isinstance(self.wrapped, PrimFunc):
            raise TypeMismatch(
                expected="a function of its knobs that makes a program",
                found=f"the finished program `{self.wrapped.name}`",
                hint="let a function take block_M and the like and return the program",
            )
        given, options = self._divided(given)
        tensors = [n for n, a in self._annotations.items() if isinstance(a, NO_KNOBS)]
        if self.tensors(args, given):  # their extents are sizes, as if given by name
            tensors += self._split(args, given)[1]
            given = {**self._constants(args, given)[1], **given}
        return open_program(
            self.program, self.signature, args, given, name=self.function.__name__,
            tensors=tensors, target=target or device_name(self.options.target),
            logged=name_of(self.wrapped),
            lowering=options.config, further=self._constant_names if self._is_eager else None,
            **asked,
        )  # fmt: skip

    def own_arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of some values that are arguments of the function.

        The names of T.const of an eager function are.
        """
        parameters = self.signature.parameters
        if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return dict(given)
        known = set(parameters)
        if self._is_eager:
            static = {k: p.default for k, p in parameters.items() if p.default is not p.empty}
            own = {k: v for k, v in given.items() if k in parameters}
            known |= set(self._constant_names({**static, **own}))
        return {k: v for k, v in given.items() if k in known}

    def lowering(self, given: Mapping[str, Any]) -> dict[str, KnobValue]:
        """Return the keywords that are knobs of the CPU's lowering and none of the function's."""
        if isinstance(self.wrapped, PrimFunc) or not any(k in given for k in LOWERING):
            return {}
        own = self.signature.parameters
        if any(p.kind is p.VAR_KEYWORD for p in own.values()):
            return {}
        return {k: v for k, v in given.items() if k in LOWERING and k not in own}

    def _divided(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], JitOptions]:
        """Return the keywords of the function, and the options with those of the lowering."""
        lowering = self.lowering(given)
        if not lowering:
            return dict(given), self.options
        rest = {k: v for k, v in given.items() if k not in lowering}
        return rest, replace(self.options, config={**self.options.config, **lowering})

    def _constant_names(self, static: Mapping[str, Any]) -> Sequence[str]:
        """Return the T.const names of an eager function."""
        return list(self._signature(static).constants)

    def tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the tensors among the arguments of a call, in the order of the parameters."""
        if isinstance(self.wrapped, PrimFunc) or not self._is_eager:
            return []
        return list(self._split(args, kwargs)[1].values())

    def key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return something hashable that is equal for calls that need the same kernel."""
        if isinstance(self.wrapped, PrimFunc) or not self._is_eager:
            return (key_of(args), key_of(kwargs))
        static, tensors, rest = self._split(args, kwargs)
        shapes = {k: (tuple(t.shape), str(t.dtype)) for k, t in tensors.items()}
        return (key_of(static), key_of(shapes), key_of(rest))

    # --- eager style ----------------------------------------------------------------------

    @property
    def func(self) -> Any:
        """The decorated function or program, by TileLang's name."""
        return self.wrapped

    @property
    def function(self) -> Any:
        """The decorated function."""
        assert isinstance(self.wrapped, FunctionType)
        return self.wrapped

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """The parameters of the decorated function."""
        return inspect.signature(self.function)

    @functools.cached_property
    def _annotations(self) -> dict[str, Any]:
        return resolve_annotations(self.function, self._locals, strict=False)

    @functools.cached_property
    def _is_eager(self) -> bool:
        if isinstance(self.wrapped, PrimFunc):
            return False
        try:
            return is_eager(self.function, self._annotations)
        except SourceUnavailable:
            return False

    def find(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Found | None:
        """Return the kernel of a call, at once if one like it was made before.

        None: the call is one of a lazy function, or asks for the kernel.
        """
        if not self._is_eager or "__return_kernel" in kwargs:
            return None
        like = likeness(args, kwargs, self._numbers) if _CACHE_IS_ON.get() else None
        found = self._calls.get(like)
        if found is not None:
            return found
        kwargs, options = self._divided(kwargs)
        static, tensors, constants = self._split(args, kwargs)
        signature = self._signature(static)
        self._check_names(constants, signature)
        missing = [p.name for p in signature.params if p.name not in tensors]
        if missing:
            raise ArgumentError(
                position=len(tensors), name=missing[0], expected="a tensor", found="nothing"
            )
        constants = solve_constants(signature.params, tensors, signature.constants)
        position = {name: i for i, name in enumerate(list(self.signature.parameters)[: len(args)])}
        names = [p.name for p in signature.params]
        found = Found(
            self._kernel(static, constants, options),
            tuple(position.get(n, n) for n in names),
            {n: tensors[n] for n in names if n not in position and n not in kwargs},
        )
        if like is not None:
            self._calls.keep(like, found)
        return found

    @functools.cached_property
    def _numbers(self) -> frozenset[int | str]:
        """Names and positions of the parameters that are numbers of the kernel."""
        names = [k for k, a in self._annotations.items() if isinstance(a, (DType, PointerSpec))]
        return frozenset(names) | {i for i, k in enumerate(self.signature.parameters) if k in names}

    def _split(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return (static arguments, tensors, keywords that are not parameters) by name."""
        own = {k: v for k, v in kwargs.items() if k in self.signature.parameters}
        bound = bound_call(self.function, self.signature.bind_partial, args, own)
        bound.apply_defaults()
        values = bound.arguments.items()
        tensors = {k: v for k, v in values if is_tensor(v) or k in self._numbers}
        static = {k: v for k, v in values if k not in tensors}
        return static, tensors, {k: v for k, v in kwargs.items() if k not in own}

    def _constants(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, int]]:
        static, tensors, constants = self._split(args, kwargs)
        if constants:
            self._check_names(constants, self._signature(static))
        if tensors:
            signature = self._signature(static)
            known = [p for p in signature.params if p.name in tensors]
            symbols = {n: v for n, v in signature.constants.items() if n not in constants}
            constants = {**solve_constants(known, tensors, symbols), **constants}
        return static, constants

    def _check_names(self, further: Iterable[str], signature: EagerSignature) -> None:
        """Refuse keywords that are neither parameters nor names of T.const (TC202)."""
        own = self.signature.parameters
        unknown = [name for name in further if name not in signature.constants]
        if not unknown or any(p.kind is p.VAR_KEYWORD for p in own.values()):
            return
        names = ", ".join([*own, *signature.constants])
        raise TypeMismatch(
            expected=f"arguments of {self.function.__name__} ({names})",
            found=", ".join(unknown),
            hint="options belong to the decorator: @tilelang.jit(target=..., pass_configs=...)",
        )

    def _signature(self, static: Mapping[str, Any]) -> EagerSignature:
        key = key_of(static)
        if key not in self._signatures:
            self._signatures[key] = eager_signature(self.function, static, self._annotations)
        return self._signatures[key]

    def _kernel(
        self, static: Mapping[str, Any], constants: Mapping[str, int], options: JitOptions
    ) -> JITKernel:
        key = (key_of(static), key_of(constants), key_of(options.config))
        if key not in self._kernels or not _CACHE_IS_ON.get():
            func = trace_eager(self.function, static, self._annotations, constants)
            self._kernels[key] = build(func, options)
        return self._kernels[key]


class JITProgram(JITImpl):
    """A finished program decorated with ``@tilelang.jit``, above ``@T.prim_func``.

    It has nothing left to choose, so that it is its kernel: called with tensors it runs, and it
    has what a kernel has. Called with nothing, it returns the kernel.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel and return its outputs; without arguments, return the kernel."""
        wants_kernel = kwargs.pop("__return_kernel", False) or not (args or kwargs)
        return self.compile() if wants_kernel else self.compile()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """What a kernel has and a function does not: ``get_profiler``, ``params``, ..."""
        if name.startswith("_") or not (hasattr(JITKernel, name) or name in OF_A_KERNEL):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(self.compile(), name)


def jit(fn: Any = None, **keywords: Any) -> Any:
    """Decorate a lazy or eager function, or a program: ``@tilelang.jit`` or ``@tilelang.jit(...)``.

    Args:
        fn: the function; or a program, which becomes its kernel.
        keywords: out_idx, target, config, pass_configs, verbose, and the other keywords of
            TileLang, which are accepted and have no effect on this target.

    Raises:
        TypeMismatch: an unknown keyword (TC202).
    """
    return _decorate(fn, keywords, sys._getframe(1).f_locals)


def _decorate(fn: Any, keywords: Mapping[str, Any], local_names: Mapping[str, Any]) -> Any:
    options = options_of(keywords)

    def decorated(fn: Any) -> JITImpl:
        made = JITProgram if isinstance(fn, PrimFunc) else JITImpl
        return made(fn, options, local_names)

    return decorated if fn is None else decorated(fn)


def _has_text_annotations(fn: Any) -> bool:
    return any(isinstance(a, str) for a in getattr(fn, "__annotations__", {}).values())


__all__ = [
    "JITImpl", "JITKernel", "JITProgram", "JitOptions", "compile", "disable_cache", "enable_cache",
    "is_cache_enabled", "jit", "mark_outputs", "par_compile",
]  # fmt: skip


class _CallableModule(ModuleType):
    """Importing ``tilecore.jit`` binds this module where users expect the decorator: it is both."""

    def __call__(self, fn: Any = None, **keywords: Any) -> Any:
        return _decorate(fn, keywords, sys._getframe(1).f_locals)


sys.modules[__name__].__class__ = _CallableModule
