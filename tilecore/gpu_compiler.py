"""compile_gpu(): the whole path from a tile program to a GPU artifact, on one screen."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilecore.artifact import Artifact, ArtifactStore, Manifest, ParameterSpec, compiler_versions
from tilecore.device_code import DeviceCode, KernelEntry, TensorMapRecipe, Workspace
from tilecore.errors import InvalidConfig
from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.accesses.banks import bank_uses, explain_conflicts
from tilecore.inference.gpu.infer import infer
from tilecore.inference.gpu.options import GpuOptions
from tilecore.inference.gpu.plan import GpuPlan
from tilecore.inference.gpu.products.registers import spilled
from tilecore.inference.races import check_races
from tilecore.inference.tile_bounds import check_tile_bounds
from tilecore.ir.analysis import waits_for_launches
from tilecore.ir.clusters import refuse_clusters
from tilecore.ir.dims import dimensions
from tilecore.ir.expr import Expr
from tilecore.ir.nodes import Alloc, KernelLaunch, PrimFunc
from tilecore.ir.plain.scaled_gemm import without_factors
from tilecore.ir.printer import Namer, format_expr, format_extent, format_func
from tilecore.ir.vendor import refuse_cuda_source
from tilecore.ir.verifier import verify
from tilecore.ir.visitor import walk
from tilecore.passes import (
    aligned,
    exact_operands,
    panels,
    persistent,
    scaled_products,
    spell_halves,
    stage_updates,
    tensor_memory,
)
from tilecore.passes.pipeline import GPU_PIPELINE, Pass, run_passes
from tilecore.passes.threads import split_branches
from tilecore.tile_config import KnobValue

if TYPE_CHECKING:
    from tilecore.codegen.cuda import CudaSource
    from tilecore.codegen.nvrtc import Cubin
    from tilecore.lowering.cuda.program import LoweredProgram

Observer = Callable[[str, Any], None]
SHARED_MEMORY = "shared memory"  # the limit that programs may still keep without these passes
VERSIONS: tuple[tuple[str, Pass], ...] = (("aligned", aligned.run),)  # of launches, at the end
OPTIONAL = (
    (), ("persistent",), ("persistent", "stage_updates"),
    ("persistent", "stage_updates", "stage_outputs"),
    ("persistent", "stage_updates", "stage_outputs", "shared_operands"),
    ("persistent", "stage_updates", "stage_outputs", "shared_operands", "exact_operands"),
)  # fmt: skip


def compile_gpu(
    func: PrimFunc,
    target: GpuTarget,
    key: str,
    digest: str,
    parameters: tuple[ParameterSpec, ...],
    store: ArtifactStore,
    knobs: Mapping[str, KnobValue],
) -> Artifact:
    """Return the compiled program as a new artifact of the store.

    Raises:
        TileError: any fault of the program, its config or the toolchain, by class.
    """
    from tilecore.codegen.cuda import ENTRY
    from tilecore.codegen.cuda_source import check_entries
    from tilecore.codegen.nvrtc import compile_cuda

    plan, program, source = lower_gpu(func, target, knobs=knobs)
    cubin = compile_cuda(source.text, target.arch, fast_math=source.fast_math)
    check_entries(source, cubin)
    _check_frames(func, cubin, target)
    device = DeviceCode(target.arch, source.entries, tensor_maps(program), workspaces(program))
    conflicts = explain_conflicts([u for p in plan.launches.values() for u in bank_uses(p)])
    manifest = Manifest(
        key=key, name=func.name, entry=ENTRY, parameters=parameters, target=target.kind,
        isa=target.name, config=knobs, program_digest=digest, versions=compiler_versions(),
        notes=(
            *plan.explain().splitlines(), *conflicts,
            *_spills(plan, program, source.entries, cubin, target),
        ),
        device=device,
        resources={
            "registers": cubin.registers,
            "spill_bytes": cubin.spills,
            "shared_bytes": max((p.shared_bytes for p in plan.launches.values()), default=0),
            "accesses_with_bank_conflicts": len(conflicts),
            "resident_blocks": _resident_blocks(source.entries, cubin, target),
        },
    )  # fmt: skip

    def write(path: Path) -> None:
        path.write_bytes(cubin.data)

    return store.put(manifest, format_func(func), write, source.text)


def _check_frames(func: PrimFunc, cubin: Cubin, target: GpuTarget) -> None:
    """Check that the arrays of a thread that lie in no register fit its local memory."""
    if cubin.frame_bytes <= target.local_per_thread:
        return
    local = [
        s.buffer for s in walk(func.body) if isinstance(s, Alloc) and s.buffer.scope == "local"
    ]
    span = local[0].span if local else func.span
    raise InvalidConfig(
        knob="local memory", value=f"{cubin.frame_bytes} B", span=span,
        expected=f"at most {target.local_per_thread} B of a thread on {target.name}",
        hint="smaller arrays of T.alloc_local, or one of T.alloc_global for all threads",
    )  # fmt: skip


def _spills(
    plan: GpuPlan,
    program: LoweredProgram,
    entries: Sequence[KernelEntry],
    cubin: Cubin,
    target: GpuTarget,
) -> Iterator[str]:
    """Yield a line for each kernel whose registers are partly kept in memory."""
    for entry, launch in zip(entries, program.launches, strict=True):
        size = cubin.kernels[entry.name].spill_store_bytes
        made = plan.launches.get(launch) if isinstance(launch, KernelLaunch) else None
        if size and made is not None and all(isinstance(e, int) for e in entry.block):
            threads = math.prod(int(e) for e in entry.block)
            yield spilled(entry.name, size, made.fragments, threads, target)


def _resident_blocks(entries: Sequence[KernelEntry], cubin: Cubin, target: GpuTarget) -> int:
    """Return how many blocks of the most demanding kernel a multiprocessor holds at a time."""
    found = []
    for entry in entries:
        registers = cubin.kernels[entry.name].registers
        if isinstance(entry.shared_bytes, int) and all(isinstance(e, int) for e in entry.block):
            threads = math.prod(int(e) for e in entry.block)
            found.append(target.occupancy(threads, registers, entry.shared_bytes))
    return min(found, default=0)


def lower_gpu(
    func: PrimFunc,
    target: GpuTarget,
    observer: Observer | None = None,
    knobs: Mapping[str, KnobValue] | None = None,
) -> tuple[GpuPlan, LoweredProgram, CudaSource]:
    """Return (inference plan, TIR, CUDA text); ``observer`` sees the result of every stage.

    Of a GPU that is not NVIDIA's the text is for the emulator alone.
    """
    from tilecore.codegen.cuda import generate
    from tilecore.codegen.cuda_source import generate_with_sources

    plan, program = lower_to_tir(func, target, observer, knobs)
    options = GpuOptions.parse(knobs or {}, func.attrs)
    if program.sources:
        source = generate_with_sources(program, target, func.attrs, fast_math=options.fast_math)
    else:
        source = generate(program.func, target, fast_math=options.fast_math)
    source = _launched(program, source, target)
    if observer is not None:
        observer("launches", source.entries)
        observer("cuda", source.text)
    return plan, program, source


def _launched(program: LoweredProgram, source: CudaSource, target: GpuTarget) -> CudaSource:
    """Return the source with its launches as the program asks.

    Where one waits for those before itself, memory changes while it runs: a compiler that is told
    otherwise (``__restrict__``) may load before the wait.
    """
    entries = tuple(_guarded(program, source.entries, target))
    if not any(entry.is_chained for entry in entries):
        return replace(source, entries=entries)
    text, emulated = (t.replace(" __restrict__", "") for t in (source.text, source.emulated))
    return replace(source, text=text, emulated=emulated, entries=entries)


def _guarded(
    program: LoweredProgram, entries: Sequence[KernelEntry], target: GpuTarget
) -> Iterator[KernelEntry]:
    """Yield launches; grids are empty where another version of the launch runs."""
    for made, launch, guard in zip(entries, program.launches, program.guards, strict=True):
        is_chained = isinstance(launch, KernelLaunch) and waits_for_launches(launch)
        entry = replace(made, is_chained=is_chained and target.chains_launches)
        if guard is None:
            yield entry
            continue
        x, y, z = entry.grid
        when = format_expr(guard, program.names)
        yield replace(entry, grid=(f"({x}) * ({when})", y, z))


def lower_to_tir(
    func: PrimFunc,
    target: GpuTarget,
    observer: Observer | None = None,
    knobs: Mapping[str, KnobValue] | None = None,
) -> tuple[GpuPlan, LoweredProgram]:
    """Return (inference plan, TIR), which is the same for GPUs of all vendors.

    verify -> bounds, races -> passes -> verify -> infer -> lower [-> prove the order]

    Raises:
        OrderFault: the order was to be proven and cannot (TC308).
    """
    from tilecore.lowering.cuda.program import lower_function

    see: Observer = observer or (lambda stage, value: None)
    func, plan = plan_gpu(func, target, observer, knobs)
    program = lower_function(func, plan, target)
    see("tir", program.func)
    checks_order = GpuOptions.parse(knobs or {}, func.attrs).check_order
    if checks_order and target.kind == "cuda" and plan.launches:
        from tilecore.codegen.order_proof import prove_order

        prove_order(program, func.name)
    return plan, program


def plan_gpu(
    func: PrimFunc,
    target: GpuTarget,
    observer: Observer | None = None,
    knobs: Mapping[str, KnobValue] | None = None,
) -> tuple[PrimFunc, GpuPlan]:
    """Return the program after the passes and its plan: all that comes before code.

    Raises:
        TileError: any fault of the program or its config, by class.
    """
    see: Observer = observer or (lambda stage, value: None)
    verify(func)
    if target.kind != "cuda":
        refuse_cuda_source(func, target.name)
    if not target.has_clusters:
        refuse_clusters(func)
    plain = without_factors(func)
    check_tile_bounds(plain)
    check_races(plain)
    see("source", func)
    func, plan = _plan(func, target, observer, GpuOptions.parse(knobs or {}, func.attrs))
    see("inference", plan)
    return func, plan


def _plan(
    func: PrimFunc, target: GpuTarget, observer: Observer | None, options: GpuOptions
) -> tuple[PrimFunc, GpuPlan]:
    """Return the program after the passes and its plan: all of them where there is room."""
    last: InvalidConfig | None = None
    for passed in _passed(func, target, observer, options):
        try:
            return _whole(passed, infer(passed, target, options), target, options)
        except InvalidConfig as error:
            if error.fields.get("knob") != SHARED_MEMORY:
                raise
            last = error
    assert last is not None
    raise last


def _whole(
    func: PrimFunc, plan: GpuPlan, target: GpuTarget, options: GpuOptions
) -> tuple[PrimFunc, GpuPlan]:
    """Return a program, and its plan, in which all threads come by where they must meet."""
    while plan.torn:
        func = split_branches.run(func, plan.torn, target)
        plan = infer(func, target, options)
    return func, plan


def _passed(
    func: PrimFunc, target: GpuTarget, observer: Observer | None, options: GpuOptions
) -> Iterator[PrimFunc]:
    """Yield the program after all passes, then after fewer of those that cost shared memory."""
    pipeline, without_versions = passes_for(target, options), []
    kept = [tuple(p for p in pipeline if p[0] not in left_out) for left_out in OPTIONAL]
    for passes in dict.fromkeys(kept):  # not every target has them all
        passed = run_passes(func, observer, passes)
        verify(passed, dimensions(func))  # of what was halved: K, of rows of two to a byte
        versions = run_passes(passed, observer, VERSIONS) if target.kind == "cuda" else passed
        yield versions
        if versions is not passed:
            without_versions.append(passed)
    yield from without_versions


def passes_for(target: GpuTarget, options: GpuOptions) -> tuple[tuple[str, Pass], ...]:
    """Return the passes of a target, in order."""
    scaled: Pass = functools.partial(scaled_products.run, target=target, options=options)
    halves: Pass = functools.partial(spell_halves.run, target=target)
    found = [("scaled_products", scaled), ("spell_halves", halves), *GPU_PIPELINE]
    if target.kind == "cuda":
        if exact_operands.MATRIX_UNITS <= target.capability < exact_operands.FLOAT8_UNITS:
            exact: Pass = functools.partial(exact_operands.run, target=target)
            found.insert(1, ("exact_operands", exact))
        order: list[tuple[str, Pass]] = [("panels", functools.partial(panels.run, target=target))]
        if target.has_wgmma:
            order.append(("persistent", functools.partial(persistent.run, target=target)))
        at = [name for name, _ in found].index("stage_outputs")
        found[at:at] = order
        if target.has_tma:
            found.insert(at + len(order), ("stage_updates", stage_updates.run))
    if target.has_tcgen05:
        found.append(
            ("tensor_memory", functools.partial(tensor_memory.run, options=options, target=target))
        )
    return tuple(found)


def tensor_maps(program: LoweredProgram) -> tuple[TensorMapRecipe, ...]:
    """Return how the tensor maps of a program are made at a call."""
    return tuple(
        TensorMapRecipe(
            name=m.name, tensor=program.names.name(m.tensor.root), dtype=str(m.tensor.dtype),
            shape=_extents(m.tensor.shape, program.names),
            strides=None if (s := m.tensor.strides) is None else _extents(s, program.names),
            box=m.box, swizzle_bytes=m.swizzle_bytes,
        )
        for m in program.maps
    )  # fmt: skip


def workspaces(program: LoweredProgram) -> tuple[Workspace, ...]:
    """Return the memory that a call provides."""
    return tuple(
        Workspace(program.names.name(b), str(b.dtype), _extents(b.shape, program.names))
        for b in program.workspaces
    )


def _extents(values: Sequence[Expr], namer: Namer) -> tuple[int | str, ...]:
    return tuple(format_extent(e, namer) for e in values)
