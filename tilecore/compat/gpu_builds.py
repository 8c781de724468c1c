"""What the programs of a survey become on GPUs: each kernel they compile is built for them too."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tilecore.errors import TileError
from tilecore.gpu_compiler import lower_gpu
from tilecore.gpu_target import GpuTarget
from tilecore.inference.gpu.accesses.banks import bank_uses
from tilecore.ir.nodes import PrimFunc
from tilecore.ir.printer import program_digest

MATRIX_OPCODES = ("HGMMA", "IGMMA", "QGMMA", "HMMA", "IMMA", "QMMA", "OMMA", "DMMA")


@dataclass(frozen=True, slots=True)
class Built:
    """One kernel for one target: its resources, or why it could not be built.

    ``conflicts``: accesses of shared memory that are predicted to meet bank conflicts.
    """

    program: str
    kernel: str
    target: str
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    units: str = ""
    conflicts: int = 0
    error: str = ""


class Builds:
    """Builds programs for ``targets`` and appends what came of it to a file, a line each."""

    def __init__(self, targets: Sequence[GpuTarget], path: Path) -> None:
        self.targets, self.path = targets, path
        self.program = ""
        self._seen: set[str] = set()

    def __call__(self, func: PrimFunc) -> None:
        """Build a program that is being compiled, once."""
        digest = program_digest(func)
        if digest in self._seen:
            return
        self._seen.add(digest)
        with self.path.open("a") as file:
            for target in self.targets:
                file.write(json.dumps(asdict(self._build(func, target))) + "\n")

    def _build(self, func: PrimFunc, target: GpuTarget) -> Built:
        from tilecore.codegen.cubin import read_features
        from tilecore.codegen.nvrtc import compile_cuda

        head = (self.program, func.name, target.name)
        try:
            plan, _, source = lower_gpu(func, target)
            cubin = compile_cuda(source.text, target.arch, fast_math=source.fast_math)
            opcodes: Counter[str] = Counter()
            for features in read_features(cubin.data, target.arch).values():
                opcodes.update({k: int(v) for k, v in features.opcodes.items()})
        except TileError as error:
            return Built(*head, error=str(error).splitlines()[0])
        used = [o for o in (*MATRIX_OPCODES, "UTMALDG", "LDGSTS") if opcodes[o]]
        shared = max((p.shared_bytes for p in plan.launches.values()), default=0)
        conflicts = [u for p in plan.launches.values() for u in bank_uses(p) if u.ways > 1]
        units = " ".join(used)
        return Built(*head, cubin.registers, cubin.spills, shared, units, len(conflicts))


def read(path: Path) -> list[Built]:
    """Return what a survey's children wrote."""
    if not path.exists():
        return []
    return [Built(**json.loads(line)) for line in path.read_text().splitlines()]


def markdown(found: Sequence[Built], source: str) -> str:
    """Return the builds as a Markdown document."""
    targets = list(dict.fromkeys(b.target for b in found))
    lines = [
        "# TileLang programs built for GPUs",
        "",
        f"{source}. Made by `python -m tilecore.compat --survey DIR --compile-for "
        f"{','.join(targets)} --gpu-out FILE`: every kernel that a program compiles while it runs "
        "on the CPU is built for these targets too, by NVRTC and without a GPU; none has run on a "
        "device.",
        "",
        "| target | kernels | built | with spills |",
        "|---|---|---|---|",
    ]
    for target in targets:
        mine = [b for b in found if b.target == target]
        built = [b for b in mine if not b.error]
        spills = sum(b.spill_bytes > 0 for b in built)
        lines.append(f"| {target} | {len(mine)} | {len(built)} | {spills} |")
    head = (
        "| program | kernel | target | registers | spilled bytes | shared bytes | units "
        "| bank conflicts |"
    )
    lines += ["", head, "|---|---|---|---|---|---|---|---|"]
    for b in sorted(found, key=lambda b: (b.program, b.kernel, b.target, b.error, b.registers)):
        where = f"| {b.program} | {b.kernel} | {b.target} "
        if b.error:
            lines.append(f"{where}| | | | {b.error.replace('|', '/')} | |")
        else:
            numbers = f"| {b.registers} | {b.spill_bytes} | {b.shared_bytes} | {b.units} "
            numbers += f"| {b.conflicts} |"
            lines.append(where + numbers)
    return "\n".join(lines) + "\n"
