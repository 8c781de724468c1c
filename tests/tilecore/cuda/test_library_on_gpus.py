"""The library's programs for GPUs: right at ragged shapes, and code without spills or conflicts.

On the emulator and as machine code; nothing here ran on a device.
"""

import numpy as np
import pytest

from recommender.hardware import load_profile
from recommender.recommend import recommend
from recommender.workload import Workload
from tests.recommender.support import MemoryStore
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore import kernels
from tilecore.codegen.cubin import read_features
from tilecore.codegen.nvrtc import compile_cuda, load_nvrtc
from tilecore.emulator import ALL_SCHEDULES, LATE
from tilecore.inference.gpu.accesses.banks import bank_uses, explain_conflicts
from tilecore.ir.analysis import output_positions
from tilecore.ir.nodes import For, KernelLaunch, Reduce
from tilecore.ir.visitor import walk
from workers.correctness import compare, tolerance

BF16 = {"dtype": "bfloat16", "out_dtype": "bfloat16"}
F16 = {"dtype": "float16", "out_dtype": "float16"}
# Kernel, problem (nothing divides anything), config.
CASES = [
    ("split_k_gemm", {"m": 70, "n": 200, "k": 520, **BF16},
     {"block_M": 64, "block_N": 64, "block_K": 64, "splits": 3}),
    ("split_k_gemm", {"m": 70, "n": 72, "k": 520, "transpose_a": True, "transpose_b": True, **F16},
     {"block_M": 64, "block_N": 64, "block_K": 32, "splits": 4}),
    ("grouped_gemm", {"m": 300, "experts": 5, "n": 200, "k": 200, **BF16},
     {"block_M": 64, "block_N": 64, "block_K": 64}),
    ("grouped_gemm", {"m": 90, "experts": 9, "n": 136, "k": 200, "transpose_b": True, **F16},
     {"block_M": 16, "block_N": 64, "block_K": 32}),
    ("dequant_gemm", {"m": 50, "n": 200, "k": 328, "group": 64},
     {"block_M": 64, "block_N": 64, "block_K": 64, "splits": 3}),
    ("dequant_gemm", {"m": 100, "n": 100, "k": 200, "group": 24, "zeros": False, "format": "nf4"},
     {"block_M": 64, "block_N": 128, "block_K": 64}),
    ("dequant_gemm", {"m": 70, "n": 128, "k": 300, "format": "float8_e5m2"},
     {"block_M": 32, "block_N": 64, "block_K": 64, "threads": 64}),
    ("dequant_gemm", {"m": 3, "n": 200, "k": 520, "group": 40},
     {"block_N": 64, "block_K": 128, "splits": 2}),
    ("dequant_gemm", {"m": 1, "n": 128, "k": 300, "format": "float8_e4m3fn"},
     {"block_N": 64, "block_K": 128, "splits": 2}),
    ("decode_attention", {"batch": 2, "heads": 8, "kv_heads": 2, "seq_q": 1, "seq_kv": 333,
                          "dim": 64, "dtype": "bfloat16"},
     {"splits": 4, "block_M": 16, "block_N": 64, "threads": 64}),
    ("decode_attention", {"batch": 1, "heads": 8, "kv_heads": 2, "seq_q": 5, "seq_kv": 333,
                          "dim": 64, "causal": True, "dtype": "float16"},
     {"splits": 2, "block_M": 64, "block_N": 64}),
    ("attention_backward", {"batch": 1, "heads": 4, "kv_heads": 2, "seq_q": 100, "seq_kv": 150,
                            "dim": 64, "causal": True, "dtype": "bfloat16"},
     {"block_M": 32, "block_N": 64}),
    ("attention_backward", {"batch": 1, "heads": 2, "kv_heads": 2, "seq_q": 100, "seq_kv": 150,
                            "dim": 64, "dtype": "float16"},
     {"block_M": 64, "block_N": 128, "threads": 256}),
    ("linear_attention", {"batch": 1, "heads": 2, "seq_len": 200, "dim": 64, "dim_v": 96,
                          "dtype": "bfloat16"},
     {"chunk": 64, "block_DV": 64}),
    ("grouped_gemm", {"m": 40, "experts": 70, "n": 64, "k": 72, **F16},
     {"block_M": 16, "block_N": 64, "block_K": 32}),
    ("conv2d", {"batch": 3, "height": 8, "width": 15, "channels": 24, "filters": 40, "padding": 1,
                **F16},
     {"block_N": 64, "block_K": 32}),
    ("conv2d", {"batch": 1, "height": 20, "width": 15, "channels": 40, "filters": 72, "kernel": 5,
                "padding": 2, "dilation": 2, **BF16},
     {"block_M": 256, "block_N": 64, "block_K": 64, "threads": 256}),
    ("conv2d", {"batch": 2, "height": 12, "width": 9, "channels": 24, "filters": 40, "stride": 2,
                **F16},
     {"block_M": 64, "block_N": 64, "block_K": 32}),
    ("conv2d", {"batch": 4, "height": 7, "width": 14, "channels": 20, "filters": 24, "padding": 1,
                **F16},
     {"block_M": 64, "block_N": 32, "block_K": 32}),
]  # fmt: skip
TARGETS = ("sm_80", "h100")
# Every kernel on both targets, each of its cases on one of them.
RUNS = [(*case, TARGETS[number % 2]) for number, case in enumerate(CASES)]
# Where the tensor memory accelerator feeds products of warps.
RUNS += [(*case, "rtx5090") for case in CASES if case[0] in ("split_k_gemm", "decode_attention")][
    ::2
]
REPEATED = {0, 3, 4, 8, 9, 11, 14}  # another case has the kernel, its few rows and its targets


def arguments(definition, problem, config, seed=2):
    """Return the program, the arguments, and the positions of the outputs with their reference."""
    knobs = dict(definition.default_config("cuda")) | config
    func = definition.program(problem, knobs)
    inputs = list(definition.inputs(problem, np.random.default_rng(seed)))
    outputs, given = output_positions(func), iter(inputs)
    values = [
        np.full([int(e) for e in p.shape], np.nan, p.dtype.numpy) if i in outputs else next(given)
        for i, p in enumerate(func.params)
    ]
    return func, values, inputs, outputs


def check(definition, problem, values, inputs, outputs):
    for position, expected in zip(outputs, definition.reference(problem, inputs), strict=True):
        found = values[position]
        rounded = definition.rounded_dtype
        bounds = tolerance(
            str(problem.get("out_dtype", problem["dtype"])), "float32",
            definition.reduction_length(problem), None if rounded is None else rounded(problem),
        )  # fmt: skip
        report = compare(found, np.asarray(expected, np.float64), *bounds)
        assert report.passed, report.detail


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run, marks=[pytest.mark.exhaustive] if number in REPEATED else [])
        for number, run in enumerate(RUNS)
    ],
    ids=lambda r: f"{r[0]}-{r[1].get('m', '')}-{r[3]}",
)
def test_programs_for_gpus_are_right_at_ragged_shapes(run):
    name, fields, config, target = run
    definition = kernels.get(name).on("cuda")
    problem = definition.parse_problem(fields)
    func, values, inputs, outputs = arguments(definition, problem, config)
    plan = run_emulated(func, target, values, (LATE,))
    check(definition, problem, values, inputs, outputs)
    kinds = {g.kind for launch in plan.launches.values() for g in launch.gemms.values()}
    assert kinds <= {"mma", "wgmma"}
    assert target == "h100" or "wgmma" not in kinds


@pytest.mark.parametrize("target", ["sm_80", "h100", "mi300x"])
@pytest.mark.parametrize(
    ("name", "n", "threads", "held"),
    [("layer_norm", 5120, 256, 24), ("rms_norm", 1320, 128, 16), ("softmax", 3072, 512, 8),
     ("layer_norm", 640, 128, 8), ("rms_norm", 4096, 256, 16)],
)  # fmt: skip
def test_rows_of_any_length_take_all_threads(name, n, threads, held, target):
    """Where threads do not divide a row, some have nothing to do in its last turn."""
    definition = kernels.get(name).on("cuda")
    problem = definition.parse_problem({"m": 3, "n": n, "dtype": "bfloat16"})
    func, values, inputs, outputs = arguments(
        definition, problem, {"block_M": 1, "threads": threads}
    )
    plan = run_emulated(func, target, values, (LATE,))
    check(definition, problem, values, inputs, outputs)
    (launch,) = plan.launches.values()
    found = {b.name: d for b, d in launch.fragments.items()}
    assert found["x"].slots == held
    assert not found["x"].copies


@pytest.mark.parametrize("axis", ["n", "m"])
@pytest.mark.parametrize("op", ["max", "min", "mean"])
def test_threads_join_results_once_and_keep_nan(op, axis):
    definition = kernels.get("reduction").on("cuda")
    problem = definition.parse_problem({"m": 70, "n": 300, "op": op, "axis": axis})
    func = definition.program(
        problem, {"block_M": 4, "block_N": 64, "splits": 2, "threads": 64}
    )  # fmt: skip
    x = np.random.default_rng(5).standard_normal((70, 300), np.float32)
    x[3, 5], x[41, :], x[69, 299] = np.nan, np.nan, np.inf
    y = np.zeros(70 if axis == "n" else 300, np.float32)
    run_emulated(func, "h100", [x, y], ALL_SCHEDULES)
    wanted = getattr(np, op)(x.astype(np.float64), axis=1 if axis == "n" else 0)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)
    first, _ = [s for s in walk(func.body) if isinstance(s, KernelLaunch)]
    loops = [s for s in walk(first.body) if isinstance(s, For)]
    assert len(loops) == 1
    assert not any(isinstance(s, Reduce) for s in walk(loops[0]))


def test_experts_without_rows_and_offsets_beyond_the_tensor():
    definition = kernels.get("grouped_gemm").on("cuda")
    problem = definition.parse_problem({"m": 100, "experts": 6, "n": 64, "k": 64, **BF16})
    config = {"block_M": 16, "block_N": 64, "block_K": 64}
    func, values, inputs, outputs = arguments(definition, problem, config)
    inputs[2][:] = [0, 0, 33, 33, 99, 100, 100]
    run_emulated(func, "h100", values, ALL_SCHEDULES)
    check(definition, problem, values, inputs, outputs)
    rows = values[outputs[0]].copy()
    values[outputs[0]][:] = np.nan
    inputs[2][:] = [-7, 0, 33, 33, 99, 100, 1 << 20]
    run_emulated(func, "h100", values, (LATE,))
    np.testing.assert_array_equal(values[outputs[0]][33:], rows[33:])


REAL = {
    "split_k_gemm": {"m": 128, "n": 512, "k": 16384, **BF16},
    "grouped_gemm": {"m": 4096, "experts": 8, "n": 4096, "k": 2048, **BF16},
    "dequant_gemm": {"m": 2048, "n": 4096, "k": 4096},
    "decode_attention": {"batch": 8, "heads": 32, "kv_heads": 8, "seq_q": 1, "seq_kv": 8192,
                         "dim": 128, "dtype": "bfloat16"},
    "attention_backward": {"batch": 4, "heads": 16, "kv_heads": 16, "seq_q": 2048, "seq_kv": 2048,
                           "dim": 128, "dtype": "bfloat16"},
    "linear_attention": {"batch": 4, "heads": 16, "seq_len": 4096, "dim": 128, "dim_v": 128,
                         "dtype": "bfloat16"},
}  # fmt: skip
LONG = ("attention_backward", "dequant_gemm")  # to prove; test_order_of_library.py has small ones
FETCHED = {"a100": "LDGSTS", "h100": "UTMALDG"}


@pytest.mark.few(1)
@pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")
@pytest.mark.parametrize(
    ("name", "device"),
    [
        *((name, "h100") for name in sorted(REAL) if name not in LONG),
        *(pytest.param(name, "h100", marks=pytest.mark.exhaustive) for name in LONG),
        ("decode_attention", "a100"),
        pytest.param("attention_backward", "a100", marks=pytest.mark.exhaustive),
        pytest.param("dequant_gemm", "a100", marks=pytest.mark.exhaustive),
    ],
)
def test_recommended_configs_keep_registers_and_banks_and_use_the_units(name, device):
    definition, hardware = kernels.get(name), load_profile(device)
    workload = Workload.of(name, definition.parse_problem(REAL[name]))
    (found,) = recommend(workload, definition, hardware, MemoryStore(), top_k=1)
    own = definition.on("cuda")
    plan, _, source = lowered(own.program(dict(workload.problem), dict(found.config)), device)
    cubin = compile_cuda(source.text, source.arch)
    made = read_features(cubin.data, source.arch).values()
    assert cubin.spills == 0
    assert "C75" not in cubin.log  # wgmma is not serialised
    uses = [use for launch in plan.launches.values() for use in bank_uses(launch)]
    assert explain_conflicts(uses) == []
    is_narrow = device == "a100" or name == "decode_attention"  # 16 queries: not 64 rows
    opcodes = {name for f in made for name, count in f.opcodes.items() if count}
    assert {"HMMA" if is_narrow else "HGMMA", FETCHED[device]} <= opcodes
