"""compile(): the whole path from a tile program to an artifact, on one screen."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilecore.amd_compiler import compile_amd
from tilecore.amd_target import AmdTarget
from tilecore.artifact import (
    Artifact,
    ArtifactStore,
    Manifest,
    ParameterSpec,
    artifact_key,
    compiler_versions,
)
from tilecore.gpu_compiler import compile_gpu, plan_gpu
from tilecore.gpu_target import GpuTarget
from tilecore.inference.cpu.infer import infer
from tilecore.inference.cpu.options import CpuOptions
from tilecore.inference.cpu.plan import CpuPlan
from tilecore.inference.gpu.plan import GpuPlan
from tilecore.inference.races import check_races
from tilecore.inference.tile_bounds import check_tile_bounds
from tilecore.ir.analysis import written_buffers
from tilecore.ir.clusters import refuse_clusters
from tilecore.ir.expr import Expr, Pointer, Var
from tilecore.ir.nodes import Assert, Buffer, PrimFunc, Wait
from tilecore.ir.plain.scaled_gemm import without_factors
from tilecore.ir.printer import Namer, format_extent, format_func, program_digest
from tilecore.ir.vendor import refuse_cuda_source
from tilecore.ir.verifier import verify
from tilecore.ir.visitor import roots_of, walk
from tilecore.pass_config import CHECK_ORDER, FAST_MATH, FLOAT32_PRODUCTS, SKIPS_MASKED
from tilecore.passes.pipeline import cpu_pipeline, run_passes
from tilecore.target import Target, parse_target
from tilecore.tile_config import KnobValue

Observer = Callable[[str, Any], None]
_LISTENERS: ContextVar[tuple[Callable[[PrimFunc], None], ...]] = ContextVar("listeners", default=())
LOWERING_KNOBS = (
    "micro_m", "micro_n", "pack_a", "pack_b", "keep", FLOAT32_PRODUCTS, FAST_MATH, CHECK_ORDER,
    SKIPS_MASKED,
)  # fmt: skip


@contextlib.contextmanager
def listening(listener: Callable[[PrimFunc], None]) -> Iterator[None]:
    """Let ``listener`` see every program that is compiled inside the block."""
    token = _LISTENERS.set((*_LISTENERS.get(), listener))
    try:
        yield
    finally:
        _LISTENERS.reset(token)


def default_store() -> ArtifactStore:
    """Return the artifact cache of this user."""
    return ArtifactStore(Path.home() / ".cache" / "tilecore" / "artifacts")


def compile(
    func: PrimFunc,
    target: str | Target | GpuTarget | None = "llvm",
    config: Mapping[str, KnobValue] | None = None,
    store: ArtifactStore | None = None,
) -> Artifact:
    """Return the compiled program, from the store where it was compiled before.

    Args:
        func: a traced tile program; tile shapes are known, tensor shapes may be dynamic.
        target: a target or its name; "llvm" is this machine's CPU, "h100" a GPU.
        config: knobs of the lowering (others are ignored: the program has them already).
        store: where artifacts are kept; default: the user's cache.

    Raises:
        TileError: any fault of the program, the config or the toolchain, by class.
    """
    chosen = parse_target(target)
    for listener in _LISTENERS.get():
        listener(func)
    key, digest, knobs = _keyed(func, chosen, config)
    store = store or default_store()
    found = store.get(key)
    if found is not None:
        return found
    if isinstance(chosen, AmdTarget):
        return compile_amd(func, chosen, key, digest, parameters(func), store)
    if isinstance(chosen, GpuTarget):
        return compile_gpu(func, chosen, key, digest, parameters(func), store, knobs)
    from tilecore.codegen.launch import launcher
    from tilecore.codegen.llvm import ENTRY, generate, link
    from tilecore.lowering.cpu.scalar import memory_type

    plan, tir = lower(func, chosen, knobs)
    needed = chosen.using(plan.features)
    module = generate(tir, needed)
    objects: tuple[Path, ...] = (launcher(store.root),)
    if needed.is_emulated:
        from tilecore.emulator import x86

        module, objects = x86.emulated(module, func.name), (*objects, *x86.objects())
    manifest = Manifest(
        key=key, name=func.name, entry=ENTRY, parameters=parameters(func), target=chosen.kind,
        isa=needed.name, config=knobs, program_digest=digest, versions=compiler_versions(),
        notes=tuple(plan.explain().splitlines()),
        kept=tuple((memory_type(t.storage.dtype), t.packed_size) for t in plan.kept),
    )  # fmt: skip
    return store.put(manifest, format_func(func), lambda path: link(module, path, objects))


def stored(
    func: PrimFunc, target: str | Target | GpuTarget | None, config: Mapping[str, KnobValue],
    store: ArtifactStore,
) -> Artifact | None:  # fmt: skip
    """Return what ``compile`` would find in the store, None where it would have to compile."""
    return store.get(_keyed(func, parse_target(target), config)[0])


def _keyed(
    func: PrimFunc, target: Target | GpuTarget, config: Mapping[str, KnobValue] | None
) -> tuple[str, str, dict[str, KnobValue]]:
    """Return the artifact's key, the program's digest and the knobs of the lowering."""
    knobs = {k: v for k, v in (config or {}).items() if k in LOWERING_KNOBS}
    digest = program_digest(func)
    asserted = digest + assertion_places(func)
    return artifact_key(asserted, target.kind, _code_name(target), knobs), digest, knobs


def _code_name(target: Target | GpuTarget) -> str:
    """Return the target's name, with what emulated code depends on beyond this compiler."""
    if not isinstance(target, Target) or not target.is_emulated:
        return target.name
    from tilecore.emulator import x86

    return f"{target.name} {x86.version()}"


def lower(
    func: PrimFunc,
    target: Target,
    knobs: Mapping[str, KnobValue],
    observer: Observer | None = None,
) -> tuple[CpuPlan, Any]:
    """Return (inference plan, TIR); ``observer`` sees the result of every stage.

    verify -> bounds, races -> passes -> verify -> infer -> lower
    """
    from tilecore.lowering.cpu.lower import lower_function

    see: Observer = observer or (lambda stage, value: None)
    func, plan = _plan_cpu(func, target, knobs, observer)
    tir = lower_function(func, plan, target)
    see("tir", tir)
    return plan, tir


def _plan_cpu(
    func: PrimFunc,
    target: Target,
    knobs: Mapping[str, KnobValue],
    observer: Observer | None = None,
) -> tuple[PrimFunc, CpuPlan]:
    """Return the program after the passes and its plan."""
    see: Observer = observer or (lambda stage, value: None)
    verify(func)
    refuse_cuda_source(func, target.name)
    refuse_clusters(func)
    plain = without_factors(func)
    check_tile_bounds(plain)
    check_races(plain)
    see("source", func)
    options = CpuOptions.parse(knobs, target, func.attrs)
    func = run_passes(func, observer, cpu_pipeline(target, options))
    verify(func, has_versions=True)
    plan = infer(func, target, options)
    see("inference", plan)
    return func, plan


def check(
    func: PrimFunc, target: str | Target | GpuTarget, config: Mapping[str, KnobValue]
) -> CpuPlan | GpuPlan:
    """Return the plan of tile inference: whether a program compiles, short of generating code.

    Raises:
        TileError: any fault of the program or the config, by class.
    """
    chosen = parse_target(target)
    knobs = {k: v for k, v in config.items() if k in LOWERING_KNOBS}
    if isinstance(chosen, GpuTarget):
        return plan_gpu(func, chosen, knobs=knobs)[1]
    return _plan_cpu(func, chosen, knobs)[1]


def assertion_places(func: PrimFunc) -> str:
    """Return where the assertions and waits of ``func`` stand, which is part of the code."""
    return "".join(f" {s.span}" for s in walk(func.body) if isinstance(s, (Assert, Wait)))


def parameters(func: PrimFunc) -> tuple[ParameterSpec, ...]:
    """Return the parameters with what the program does to them."""
    written = {b.root for b in written_buffers(func.body)}
    used = roots_of(func.body)
    outputs = {i % len(func.params) for i in func.attrs.get("out_idx", ())}
    namer = Namer()
    for param in func.params:
        namer.name(param)
    return tuple(
        replace(_parameter(p, namer, position in outputs, p in written), is_used=p in used)
        for position, p in enumerate(func.params)
    )


def _parameter(
    param: Buffer | Var, namer: Namer, is_output: bool, is_written: bool
) -> ParameterSpec:
    name, dtype = namer.name(param), str(param.dtype)
    if isinstance(param, Var):
        kind = "pointer" if isinstance(param, Pointer) else "scalar"
        return ParameterSpec(name, dtype, (), is_output=False, is_written=False, kind=kind)

    def extents(values: Iterable[Expr]) -> tuple[int | str, ...]:
        return tuple(format_extent(value, namer) for value in values)

    strides = None if param.strides is None else extents(param.strides)
    return ParameterSpec(
        name=name,
        dtype=dtype,
        shape=extents(param.shape),
        is_output=param.is_output or is_output,
        is_written=is_written,
        strides=strides,
    )
