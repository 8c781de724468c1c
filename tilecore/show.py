"""The texts of a program on its way to machine code, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilecore import compiler
from tilecore.amd_compiler import lower_amd
from tilecore.amd_target import AmdTarget
from tilecore.errors import TypeMismatch
from tilecore.gpu_compiler import lower_gpu
from tilecore.gpu_target import GpuTarget
from tilecore.inference.cpu.plan import CpuPlan
from tilecore.inference.gpu.plan import GpuPlan
from tilecore.ir.nodes import PrimFunc
from tilecore.ir.printer import format_func
from tilecore.target import Target

MACHINE_STAGES = {"llvm": "ll", "asm": "s"}  # name: TVM's format
WITHOUT_TEXT = "launches"  # of a GPU's kernels, for ``engine.lower``
LONG_STAGES = (*MACHINE_STAGES, "cuda")


def stage_texts(func: PrimFunc, target: Target | GpuTarget, knobs: Any = None) -> dict[str, str]:
    """Return the result of every stage of the compilation of ``func`` as text, in order.

    ``source`` and the passes (see ``passes/pipeline.py``) as tile IR, ``inference``, ``tir``;
    then ``llvm`` and ``asm`` of a CPU or an AMD GPU, ``cuda`` of another GPU.

    Raises:
        TileError: any fault of the program, by class.
    """
    from tilecore.codegen.llvm import generate

    stages: dict[str, Any] = {}
    if isinstance(target, AmdTarget):
        lower_amd(func, target, stages.__setitem__)
        return _texts(stages)
    if isinstance(target, GpuTarget):
        lower_gpu(func, target, stages.__setitem__, knobs)
        return _texts(stages)
    plan, tir = compiler.lower(func, target, knobs or {}, stages.__setitem__)
    module = generate(tir, target.using(plan.features))
    machine = {name: module.inspect_source(form) for name, form in MACHINE_STAGES.items()}
    return _texts(stages) | machine


def show(
    func: PrimFunc, target: Target | GpuTarget, knobs: Any = None, stage: str | None = None
) -> str:
    """Return the text of one stage; without one, of all of them up to TIR, each under its name.

    A pass that changed nothing is named only.

    Raises:
        TypeMismatch: there is no such stage (TC202).
    """
    texts = stage_texts(func, target, knobs)
    if stage is not None:
        if stage not in texts:
            raise TypeMismatch(expected=f"a stage: {', '.join(texts)}", found=repr(stage))
        return texts[stage]
    parts: list[str] = []
    before = ""
    for name, text in texts.items():
        if name not in LONG_STAGES:
            shown = text.rstrip() if text != before else "(unchanged)"
            parts.append(f"# --- {name} ---\n{shown}\n")
            before = text
    return "\n".join(parts)


def _texts(stages: Mapping[str, Any]) -> dict[str, str]:
    return {name: _text(value) for name, value in stages.items() if name != WITHOUT_TEXT}


def _text(value: Any) -> str:
    if isinstance(value, PrimFunc):
        return format_func(value)
    if isinstance(value, str):
        return value
    if isinstance(value, (CpuPlan, GpuPlan)):
        return value.explain()
    return str(value.script())
