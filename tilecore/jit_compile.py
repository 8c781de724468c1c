"""tilelang.compile: from a traced program to a kernel, by the keywords that ``jit`` shares."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilecore.errors import ArgumentError, TypeMismatch
from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.products.registers import SPILLED
from tilecore.ir.nodes import Buffer, PrimFunc, SourceLaunch
from tilecore.ir.visitor import walk
from tilecore.kernel import JITKernel
from tilecore.pass_config import (
    PassConfigKey,
    check_pass_configs,
    lowering_config,
    surrounding_configs,
)
from tilecore.target import Target, emulates_gpus, names_emulator, parse_target
from tilecore.tile_config import KnobValue

_LOG = logging.getLogger("tilecore.jit")


class SpilledRegisters(UserWarning):
    """A GPU's registers do not suffice for a kernel: which fragments take how many of them."""


@dataclass(frozen=True, slots=True)
class JitOptions:
    """Keywords of ``jit`` and ``compile``.

    Attributes:
        out_idx: positions of the parameters the kernel allocates and returns.
        target: what to generate code for.
        config: knobs of the lowering.
        pass_configs: "tl.enable_fast_math" lets NVIDIA's compiler take approximate functions;
            others of TileLang are accepted, unknown keys warn. "tc.float32_products": "exact"
            keeps products of float32 operands off tensor cores, which drop bits of them.
            "tc.check_order": True proves that GPU kernels order all accesses (TC308 if not).
        ignored: other keywords of TileLang, which have no effect here.
    """

    out_idx: int | Sequence[int] | None = None
    target: str | Target | None = "auto"
    config: Mapping[str, KnobValue] = field(default_factory=dict)
    pass_configs: Mapping[str, Any] | None = None
    verbose: bool = False
    ignored: Mapping[str, Any] = field(default_factory=dict)


# What the jit of TileLang 0.1.0 took for its autotuner, which asks the function for it.
TUNING = (
    "atol", "cache_input_tensors", "max_mismatched_ratio", "profiler", "ref_prog", "rtol",
    "skip_check", "supply_prog", "supply_type",
)  # fmt: skip
TOLD_BYTES = 256  # of a thread's registers in memory, from which on a warning says so
_COMPATIBLE = (
    "target_host", "execution_backend", "debug_root_path", "compile_flags", "workers", *TUNING,
)  # fmt: skip


def options_of(keywords: Mapping[str, Any]) -> JitOptions:
    """Return keywords of ``jit`` or ``compile`` as options; TypeMismatch (TC202) for others."""
    own = {k: v for k, v in keywords.items() if k in JitOptions.__dataclass_fields__}
    ignored = {k: v for k, v in keywords.items() if k not in own}
    unknown = sorted(set(ignored) - set(_COMPATIBLE))
    if unknown:
        raise TypeMismatch(
            expected=f"keywords out_idx, target, config, pass_configs, verbose, "
            f"{', '.join(_COMPATIBLE)}",
            found=", ".join(unknown),
        )
    if own.get("target", "") is None:  # TileLang's default
        own["target"] = "auto"
    pass_configs = own.get("pass_configs") or {}
    check_pass_configs(pass_configs)
    own["config"] = {**lowering_config(pass_configs), **(own.get("config") or {})}
    return JitOptions(**own, ignored=ignored)


def mark_outputs(func: PrimFunc, out_idx: int | Sequence[int] | None) -> PrimFunc:
    """Return ``func`` with the parameters at ``out_idx`` recorded as its outputs.

    Raises:
        ArgumentError: a position that is no tensor parameter, or one given twice (TC402).
    """
    if out_idx is None:
        return func
    count = len(func.params)
    positions = [out_idx] if isinstance(out_idx, (int, str)) else list(out_idx)
    for position in positions:
        is_there = hasattr(position, "__index__") and -count <= position < count
        if not is_there or not isinstance(func.params[position], Buffer):
            raise ArgumentError(
                position=position,
                name="out_idx",
                expected=f"the position of a tensor parameter of {func.name} (0 to {count - 1})",
                found=position,
            )
    normal = tuple(p % count for p in positions)
    if len(set(normal)) < len(normal):
        raise ArgumentError(
            position=next(p for i, p in enumerate(positions) if normal[i] in normal[:i]),
            name="out_idx",
            expected="each output once",
            found=positions,
        )
    return replace(func, attrs={**func.attrs, "out_idx": normal})


def compile(
    func: PrimFunc | None = None,
    out_idx: int | Sequence[int] | None = None,
    target: str | Target | None = "auto",
    **keywords: Any,
) -> JITKernel:
    """Return a callable kernel of a traced program.

    Args:
        func: what ``@T.prim_func`` returned.
        out_idx: positions of the parameters the kernel allocates and returns.
        target: "auto" (this machine's NVIDIA GPU, else its CPU), "llvm", "h100", ... or a Target.
        keywords: further keywords of JitOptions, and those of TileLang.

    Raises:
        TileError: any fault of the program, the config or the target, by class.
    """
    if not isinstance(func, PrimFunc):
        raise TypeMismatch(
            expected="a program made by @T.prim_func",
            found=f"{type(func).__name__}",
            hint="call the function that returns the program first",
        )
    return build(func, options_of({"out_idx": out_idx, "target": target, **keywords}))


def build(func: PrimFunc, options: JitOptions) -> JITKernel:
    """Return the kernel of a program; raises as ``compile`` does."""
    from tilecore import compiler, runtime

    marked, target, config = _asked(func, options)
    artifact = compiler.compile(marked, target, config)
    if options.verbose:
        _LOG.info("compiled %s for %s: %s", func.name, target, artifact.path)
    if artifact.manifest.target != "llvm":
        if artifact.manifest.resources.get("spill_bytes", 0) >= TOLD_BYTES:
            told = "\n".join(n for n in artifact.manifest.notes if SPILLED in n)
            if told:
                warnings.warn(f"{func.span}: {told}", SpilledRegisters, stacklevel=3)
        # Loaded by its first call: to compile it takes no GPU.
        kernel = JITKernel(marked, artifact, None, options.out_idx)
        if emulates_gpus() or names_emulator(options.target):
            return kernel.emulated()
        if options.target == "auto":
            kernel.or_on_cpu(lambda: build(func, replace(options, target="llvm")))
        return kernel
    return JITKernel(marked, artifact, runtime.load(artifact), options.out_idx)


def begin(func: PrimFunc, options: JitOptions) -> Callable[[], None]:
    """Have a kernel compiled by another process (``compile_ahead``); return what waits for that.

    ``build`` then finds it in the store. Of one that is there nothing is asked.
    """
    from tilecore import compiler
    from tilecore.compile_ahead import HELPER

    marked, target, config = _asked(func, options)
    store = compiler.default_store()
    if compiler.stored(marked, target, config, store) is not None:
        return lambda: None
    number = HELPER.ask(marked, target, config, store)
    return lambda: HELPER.wait(number)


def _asked(
    func: PrimFunc, options: JitOptions
) -> tuple[PrimFunc, Target | GpuTarget, dict[str, KnobValue]]:
    """Return what is compiled: the program with its outputs marked, for which target, how."""
    marked = _with_flags(mark_outputs(func, options.out_idx), options)
    config = {**lowering_config(surrounding_configs()), **options.config}
    return marked, parse_target(options.target), config


def _with_flags(func: PrimFunc, options: JitOptions) -> PrimFunc:
    """Return a program that has CUDA source of its own with the flags for its compiler."""
    flags = options.ignored.get("compile_flags")
    flags = flags or (options.pass_configs or {}).get(PassConfigKey.TL_DEVICE_COMPILE_FLAGS)
    if not flags or not any(isinstance(s, SourceLaunch) for s in walk(func.body)):
        return func
    given = (flags,) if isinstance(flags, str) else tuple(str(f) for f in flags)
    known = tuple(func.attrs.get("tilelang_compile_flags", ()))
    return replace(func, attrs={**func.attrs, "tilelang_compile_flags": (*known, *given)})


def par_compile(
    funcs: Sequence[PrimFunc], out_idx: int | Sequence[int] | None = None, **keywords: Any
) -> list[JITKernel]:
    """Return the kernels of several programs."""
    return [compile(f, out_idx, **keywords) for f in funcs]
