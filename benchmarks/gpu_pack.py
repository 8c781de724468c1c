"""Check on a GPU what was built and emulated without one: two commands, two machines.

    python benchmarks/gpu_pack.py build FOLDER [--target h100]    # NVRTC, TVM, g++; no GPU
    python benchmarks/gpu_pack.py run FOLDER [--out RESULT.json]  # torch for CUDA, cuda-bindings

``build`` compiles small problems of every library kernel and large ones of gemm and attention to
artifacts; the small ones run on the emulator as well, and their inputs, the float64 reference and
what the emulator computed are stored beside them. ``run`` needs neither TVM nor a CUDA toolkit: it
loads the artifacts, compares the device with the reference and with the emulator, and times the
large problems interleaved with torch. Nothing is claimed where it did not run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tilecore.artifact import Artifact, ArtifactStore
from tilecore.runtime.cuda import CudaKernel

SMALL: dict[str, list[dict[str, Any]]] = {
    "gemm": [
        {"m": 200, "n": 144, "k": 200, "dtype": "float16", "out_dtype": "float16"},
        {"m": 128, "n": 128, "k": 128, "dtype": "bfloat16", "transpose_b": True},
        {"m": 128, "n": 128, "k": 128, "dtype": "float16", "transpose_a": True},
        {"m": 64, "n": 64, "k": 96, "dtype": "float32"},
    ],
    "gemm_epilogue": [{"m": 96, "n": 80, "k": 72}],
    "batched_gemm": [{"batch": 3, "m": 40, "n": 48, "k": 32}],
    "split_k_gemm": [{"m": 40, "n": 48, "k": 300}],
    "dequant_gemm": [{"m": 5, "n": 64, "k": 128}],
    "grouped_gemm": [{"m": 50, "experts": 3, "n": 64, "k": 64}],
    "decode_attention": [
        {"batch": 1, "heads": 4, "kv_heads": 2, "seq_q": 1, "seq_kv": 200, "dim": 64}
    ],
    "linear_attention": [{"batch": 1, "heads": 2, "seq_len": 100, "dim": 32, "dim_v": 32}],
    "softmax": [{"m": 10, "n": 200}],
    "layer_norm": [{"m": 10, "n": 200}],
}
SMALL_KNOBS = {"gemm": {"block_M": 64, "block_N": 64, "block_K": 64}}
LARGE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "gemm",
        {"m": 4096, "n": 4096, "k": 4096, "dtype": "float16", "out_dtype": "float16"},
        {"block_M": m, "block_N": n, "block_K": k, "num_stages": s, "threads": t},
    )
    for m, n, k, s, t in ((128, 128, 32, 4, 128), (128, 128, 64, 3, 256), (128, 256, 64, 4, 256))
]
TOLERANCE = {"float16": 4e-3, "bfloat16": 2e-2, "float32": 2e-5}
REPEATS, WARM_UP = 30, 5
LIMIT_S = 60.0  # of a case


# --- build: without a GPU ------------------------------------------------------------------------


def build(folder: Path, target: str) -> None:
    """Compile all cases into ``folder``."""
    cases = [(n, p, SMALL_KNOBS.get(n, {}), True) for n, ps in SMALL.items() for p in ps]
    cases += [(n, p, k, False) for n, p, k in LARGE]
    for number, (name, problem, knobs, is_small) in enumerate(cases):
        place = folder / f"{number:02d}-{name}"
        try:
            place.mkdir(parents=True)
            note = build_case(place, name, problem, knobs, target, is_small)
        except Exception as error:  # noqa: BLE001  # a case that does not build is a result
            note = f"not built: {str(error).splitlines()[0]}"
            (place / "case.json").write_text(json.dumps({"name": name, "error": note}))
        print(f"{place.name:24} {note}")


def build_case(
    place: Path, name: str, problem: dict[str, Any], knobs: dict[str, Any], target: str,
    is_small: bool,
) -> str:  # fmt: skip
    """Compile one case; return what to print."""
    from tilecore.compiler import compile
    from tilecore.emulator import EmulatedDriver
    from tilecore.gpu_compiler import lower_gpu
    from tilecore.gpu_target import GpuTarget
    from tilecore.ir.analysis import output_positions
    from tilecore.kernels import KERNELS
    from tilecore.target import parse_target

    chosen = parse_target(target)
    assert isinstance(chosen, GpuTarget)
    definition = KERNELS[name].on("cuda")
    parsed = definition.parse_problem(problem)
    func = definition.program(parsed, {k.name: k.default for k in definition.knobs} | knobs)
    artifact = compile(func, chosen, store=ArtifactStore(place / "store"))
    artifact.path.rename(place / "artifact")
    case: dict[str, Any] = {
        "name": name, "problem": problem, "knobs": knobs, "target": target, "is_small": is_small,
        "outputs": list(output_positions(func)), "work_flop": definition.work_flop(parsed),
    }  # fmt: skip
    resources = dict(artifact.manifest.resources)
    if is_small:
        inputs = list(definition.inputs(parsed, np.random.default_rng(7)))
        expected = [np.asarray(e, np.float64) for e in definition.reference(parsed, inputs)]
        given = iter(inputs)
        arguments = [
            np.zeros([int(e) for e in p.shape], p.dtype.numpy) if i in case["outputs"]
            else next(given)
            for i, p in enumerate(func.params)
        ]  # fmt: skip
        tensors = [to_torch(a, "cpu") for a in arguments]
        source = lower_gpu(func, chosen)[2]
        CudaKernel(Artifact.open(place / "artifact"), EmulatedDriver(source))(*tensors)
        case["arguments"] = [[str(a.dtype), list(a.shape)] for a in arguments]
        files = {f"a{i}": np.frombuffer(a.tobytes(), np.uint8) for i, a in enumerate(arguments)}
        for number, position in enumerate(case["outputs"]):
            files[f"emulated{number}"] = tensors[position].double().numpy()
            files[f"expected{number}"] = expected[number]
        np.savez_compressed(place / "data.npz", **files)
    (place / "case.json").write_text(json.dumps(case, indent=1))
    return f"built, {resources.get('registers')} registers, {resources.get('spill_bytes')} spilled"


def to_torch(array: np.ndarray, device: str) -> torch.Tensor:
    """Return an array as a tensor (NumPy's extension types by their bytes)."""
    raw = torch.from_numpy(np.frombuffer(bytearray(array.tobytes()), np.uint8))
    kind = getattr(torch, array.dtype.name)
    return raw.view(kind).reshape(array.shape).to(device)


# --- run: on the GPU ------------------------------------------------------------------------------


def run(folder: Path) -> list[dict[str, Any]]:
    """Run all cases of ``folder`` on the first device."""
    found = []
    for place in sorted(p for p in folder.iterdir() if (p / "case.json").is_file()):
        case = json.loads((place / "case.json").read_text())
        if "error" in case:
            continue
        result = isolated(run_small if case["is_small"] else run_large, place, case)
        found.append({"case": place.name, **case, **result})
        print(f"{place.name:24} {json.dumps(result)}")
    return found


def isolated(
    work: Callable[[Path, dict[str, Any]], dict[str, Any]], place: Path, case: dict[str, Any]
) -> dict[str, Any]:
    """Return what ``work`` finds in a forked process: a case that breaks CUDA costs itself."""
    ours, theirs = multiprocessing.Pipe()

    def answer() -> None:
        try:
            theirs.send(work(place, case))
        except Exception as error:  # noqa: BLE001  # a case that fails is a result
            theirs.send({"status": "failed", "error": str(error)[:500]})

    process = multiprocessing.get_context("fork").Process(target=answer)
    process.start()
    theirs.close()
    try:
        if ours.poll(LIMIT_S):
            found: dict[str, Any] = ours.recv()
            return found
        return {"status": "failed", "error": f"nothing after {LIMIT_S:.0f} s"}
    except EOFError:
        return {"status": "failed", "error": "the process died"}
    finally:
        process.kill()
        process.join()


def run_small(place: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Compare the device with the reference and with the emulator."""
    import ml_dtypes

    files = np.load(place / "data.npz")
    arguments = []
    for i, (dtype, shape) in enumerate(case["arguments"]):
        kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
        arguments.append(to_torch(files[f"a{i}"].view(kind).reshape(shape), "cuda"))
    for position in case["outputs"]:
        arguments[position].fill_(float("nan") if arguments[position].is_floating_point() else 77)
    CudaKernel(Artifact.open(place / "artifact"))(*arguments)
    torch.cuda.synchronize()
    errors, differences, is_right = [], [], True
    for number, position in enumerate(case["outputs"]):
        made = arguments[position].double().cpu().numpy()
        expected, emulated = files[f"expected{number}"], files[f"emulated{number}"]
        scale = np.abs(expected).max() or 1.0
        errors.append(float(np.abs(made - expected).max() / scale))
        differences.append(float(np.abs(made - emulated).max() / scale))
        kind = str(arguments[position].dtype).removeprefix("torch.")
        is_right &= errors[-1] <= TOLERANCE.get(kind, 0.0)
    status = "ok" if is_right else "WRONG"
    return {"status": status, "relative_error": errors, "from_emulator": differences}


def run_large(place: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Time a product beside torch, and compare the two."""
    problem, kernel = case["problem"], CudaKernel(Artifact.open(place / "artifact"))
    kind = getattr(torch, problem["dtype"])
    a = torch.randn(problem["m"], problem["k"], device="cuda").to(kind)
    b = torch.randn(problem["k"], problem["n"], device="cuda").to(kind)
    c, other = (torch.empty(problem["m"], problem["n"], device="cuda", dtype=kind) for _ in "ab")
    kernel(a, b, c)
    torch.matmul(a, b, out=other)
    error = float((c.double() - other.double()).abs().max() / other.double().abs().max())
    ours, theirs = interleaved(lambda: kernel(a, b, c), lambda: torch.matmul(a, b, out=other))
    return {
        "status": "ok" if error <= TOLERANCE[problem["dtype"]] else "WRONG",
        "relative_error": error, "ours_ms": ours, "torch_ms": theirs,
        "ours_tflops": case["work_flop"] / ours / 1e9,
        "torch_over_ours": theirs / ours,
    }  # fmt: skip


def interleaved(one: Callable[[], Any], other: Callable[[], Any]) -> tuple[float, float]:
    """Return the medians of two calls in ms, measured in turns by events."""
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(WARM_UP + REPEATS):
        for call, measured in zip((one, other), times, strict=True):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
            begin.record()
            call()
            end.record()
            end.synchronize()
            if repeat >= WARM_UP:
                measured.append(begin.elapsed_time(end))
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="h100")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.command == "build":
        build(args.folder, args.target)
        return
    results = run(args.folder)
    properties = torch.cuda.get_device_properties(0)
    record = {"device": properties.name, "torch": torch.__version__, "results": results}
    if args.out is not None:
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
