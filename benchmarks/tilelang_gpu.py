"""Machine code for GPUs beside TileLang's, built without a GPU: CPU time, registers, instructions.

    python benchmarks/tilelang_gpu.py --peer /path/to/venv-with-tilelang/bin/python [--json FILE]

Both compile the programs of benchmarks/gpu_programs.py from traced program to cubin, in turns,
in a fresh process each (A B A B), which builds twice and times the second. Times are CPU seconds of
the process and its children; TileLang's chain is tilelang.lower, then nvcc with its headers, as its
own is.
Nothing runs: this says nothing about the speed of the kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


def spent_s() -> float:
    """Return the CPU seconds of this process and of its finished children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def ours(number: int, cubin: Path) -> float:
    """Build a program with tilecore; return the CPU seconds."""
    from gpu_programs import PROGRAMS

    import tilecore.codegen.cuda
    import tilecore.lowering.cuda.program  # noqa: F401
    from tilecore.codegen.nvrtc import compile_cuda, load_nvrtc
    from tilecore.gpu_compiler import lower_gpu
    from tilecore.target import parse_gpu_target

    load_nvrtc()
    _, arch, program = PROGRAMS[number]
    func, target = program(), parse_gpu_target(arch)
    start = spent_s()
    _, _, source = lower_gpu(func, target)
    cubin.write_bytes(compile_cuda(source.text, arch).data)
    return spent_s() - start


def theirs(number: int, cubin: Path) -> float:
    """Build a program with TileLang; return the CPU seconds."""
    import tilelang
    from gpu_programs import PROGRAMS
    from tilelang import tvm

    _, arch, program = PROGRAMS[number]
    package = Path(tilelang.__file__).parent
    func = program()
    target = tvm.target.Target({"kind": "cuda", "arch": arch}, host={"kind": "llvm"})
    start = spent_s()
    with target:
        made = tilelang.lower(
            func, target=target, enable_host_codegen=False, enable_device_compile=False
        )
    text = cubin.with_suffix(".cu")
    text.write_text(made.kernel_source)
    code = arch.removeprefix("sm_")
    subprocess.run(
        ["nvcc", "-std=c++17", "-O3", "-cubin", "-gencode", f"arch=compute_{code},code=sm_{code}",
         f"-I{package}/src", f"-I{package}/3rdparty/cutlass/include", "-o", str(cubin), str(text)],
        check=True,
    )  # fmt: skip
    return spent_s() - start


def child(python: str, who: str, number: int, cubin: Path) -> float:
    """Build one program in a process of its own; return its CPU seconds."""
    command = [python, __file__, "--build", who, str(number), str(cubin)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        raise SystemExit(f"{who}, program {number}: {done.stderr.strip()[-600:]}")
    return float(done.stdout.split()[-1])


def inspect(cubin: Path, arch: str) -> dict[str, Any]:
    """Return registers, spills and instructions of the one kernel of a cubin."""
    from tilecore.codegen.cubin import read_features

    (features,) = read_features(cubin.read_bytes(), arch).values()
    units = ("HGMMA", "HMMA", "UTMALDG", "LDGSTS", "LDSM", "LDL", "STL")
    return {
        "registers": features.registers,
        "instructions": features.instructions,
        "local_accesses": features.local_accesses,
        **{u: int(features.opcodes[u]) for u in units if features.opcodes.get(u)},
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="a Python that has tilelang")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="programs with this regex in their names")
    parser.add_argument("--build", nargs=3, metavar=("WHO", "NUMBER", "CUBIN"))
    given = parser.parse_args()
    if given.build:
        who, number, cubin = given.build
        build = ours if who == "tilecore" else theirs
        build(int(number), Path(cubin))  # the first one loads and fills caches of the process
        print(build(int(number), Path(cubin)))
        return
    from gpu_programs import PROGRAMS

    pythons = {"tilecore": sys.executable} | ({"tilelang": given.peer} if given.peer else {})
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, arch, _) in enumerate(PROGRAMS):
            if not re.search(given.only, name):
                continue
            times: dict[str, list[float]] = {who: [] for who in pythons}
            for _ in range(given.repeats):
                for who, python in pythons.items():
                    cubin = Path(folder) / f"{who}{number}.cubin"
                    times[who].append(child(python, who, number, cubin))
            row: dict[str, Any] = {"program": name, "arch": arch}
            for who in pythons:
                cubin = Path(folder) / f"{who}{number}.cubin"
                seconds = statistics.median(times[who])
                row[who] = {"cpu_s": round(seconds, 3), **inspect(cubin, arch)}
                print(f"{name:44} {arch:7} {who:9} {row[who]}", flush=True)
            rows.append(row)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
