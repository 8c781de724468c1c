"""Kernels for AVX-512 and AMX on a machine that may have neither: right, and caught when wrong."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tests.tilecore.test_narrow_gemm import blank, expect, operand, product
from tests.tilecore.test_pairs import weighed
from tests.tilecore.x86_paths import CLIENT, TILES, VECTOR, is_native
from tilecore import kernels, runtime
from tilecore.codegen.launch import launcher
from tilecore.codegen.llvm import assemble, generate, link
from tilecore.compiler import compile, lower
from tilecore.emulator import x86
from tilecore.errors import ArtifactError, EmulationError, UnknownTarget
from tilecore.ir.dtype import DType
from tilecore.target import compiling_for, cpu_target, parse_target
from workers.correctness import compare, tolerance


def text_of(func, target):
    """Return the LLVM IR of a program, the code that is emulated."""
    chosen = parse_target(target)
    plan, tir = lower(func, chosen, {})
    return generate(tir, chosen.using(plan.features)).inspect_source("ll")


def with_bug(func, target, store, pattern, changed):
    """Return the kernel of a program whose LLVM IR is changed before it is emulated."""
    text, count = re.subn(pattern, changed, text_of(func, target))
    assert count > 0, f"nothing looks like {pattern}"
    module = assemble(x86.to_avx2(text, func.name))
    manifest = compile(func, f"emulated {target}", store=store).manifest
    manifest = replace(manifest, key=manifest.key[:-6] + f"{abs(hash(pattern + changed)):06x}"[:6])
    objects = (launcher(store.root), *x86.objects())
    return runtime.load(store.put(manifest, "", lambda path: link(module, path, objects)))


def test_the_same_code_is_compiled_and_what_it_needs_is_recorded(artifacts):
    func = product(64, 64, 64, "int8")
    artifact = compile(func, f"emulated {VECTOR}", store=artifacts)
    assert artifact.manifest.isa == "emulated avx512+avx512_vnni"
    native = compile(func, VECTOR, store=artifacts)
    assert native.manifest.key != artifact.manifest.key
    same = [note.replace("emulated ", "") for note in artifact.manifest.notes]
    assert same == list(native.manifest.notes)


@pytest.mark.skipif(is_native(TILES), reason="this machine has tiles of AMX")
def test_code_that_is_not_emulated_is_refused_as_ever(artifacts):
    artifact = compile(product(64, 64, 64, "bfloat16"), TILES, store=artifacts)
    with pytest.raises(ArtifactError, match=r"TC401[^\0]*this machine has[^\0]*emulated"):
        runtime.load(artifact)


def test_names_of_targets():
    target = parse_target(f"emulated {TILES}")
    assert parse_target(target.name) == target
    assert target.name == f"emulated {TILES}"
    assert replace(target, is_emulated=False) == parse_target(TILES)
    assert parse_target("avx2").runs(target)
    with compiling_for(f"emulated {VECTOR}"):
        assert cpu_target() == parse_target("llvm") == parse_target(f"emulated {VECTOR}")
    assert not cpu_target().is_emulated
    for name in ("emulated avx512+sse9", "emulated avx1024"):
        with pytest.raises(UnknownTarget):
            parse_target(name)


def test_a_call_in_the_language_of_its_author():
    @tilelang.jit(target="emulated avx512", out_idx=[-1])
    def exponentials(n: int):
        @T.prim_func
        def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
            with T.Kernel(1):
                for i in T.Parallel(n):
                    Y[i] = T.exp(X[i])

        return main

    x = torch.randn(100)
    kernel = exponentials(100)
    torch.testing.assert_close(kernel(x), torch.exp(x))
    assert "scalef" in kernel.show("llvm")


def test_nothing_is_timed_on_an_emulated_cpu():
    @tilelang.autotune(configs=[{"size": 32}, {"size": 64}])
    @tilelang.jit(target=f"emulated {TILES}", out_idx=[-1])
    def doubled(size: int = 16):
        @T.prim_func
        def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
            with T.Kernel(64 // size) as b:
                for i in T.Parallel(size):
                    Y[b * size + i] = X[b * size + i] * 2

        return main

    kernel = doubled()
    assert kernel.config == {"size": 32}
    assert np.isnan(kernel.latency)
    torch.testing.assert_close(kernel(torch.ones(64)), torch.full((64,), 2.0))


# --- what must be caught ----------------------------------------------------------------------

BYTES = r"(vpdpbusd\.512\([^,]*), (<64 x i8> [^,]*), (<64 x i8> [^)]*)"
CLEAR = r"  (tail )?call void @llvm\.x86\.tilezero\(i8 1\).*\n"
WRONG = {
    "operands of vpdpbusd": (VECTOR, "int8", BYTES, r"\1, \3, \2"),
    "operands of tdpbf16ps": (TILES, "bfloat16", r"tdpbf16ps\(i8 0, i8 4, i8 6\)",
                              "tdpbf16ps(i8 0, i8 6, i8 4)"),
    "the second tile of b": (TILES, "int8", r"tdpbssd\(i8 1, i8 4, i8 7\)",
                             "tdpbssd(i8 1, i8 4, i8 6)"),
    "sums that are not cleared": (TILES, "int8", CLEAR, ""),
    "signs of bytes": (TILES, "int8", "tdpbssd", "tdpbuud"),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_operands_are_wrong_results(name, artifacts):
    target, dtype, pattern, changed = WRONG[name]
    func = product(64, 64, 64, dtype)
    a, b = operand((64, 64), dtype, 1), operand((64, 64), dtype, 2)
    out = blank((64, 64), "float32" if dtype == "bfloat16" else "int32")
    runtime.load(compile(func, f"emulated {target}", store=artifacts))(a, b, out)
    expect(a, b, out, 64)
    with_bug(func, target, artifacts, pattern, changed)(a, b, out)
    with pytest.raises(AssertionError):
        expect(a, b, out, 64)


def test_halves_of_a_pair_in_the_wrong_order_are_wrong_results(artifacts):
    rng = np.random.default_rng(0)
    scores, v = (rng.standard_normal(s, np.float32) for s in ((32, 64), (64, 32)))
    v, results = v.astype(DType("bfloat16").numpy), []
    pattern = r"(cvtne2ps2bf16\.512\()(<16 x float> [^,]*), (<16 x float> [^)]*)"
    func = weighed(64)
    for kernel in (
        runtime.load(compile(func, f"emulated {TILES}", store=artifacts)),
        with_bug(func, TILES, artifacts, pattern, r"\1\3, \2"),
    ):
        results.append(np.zeros((32, 32), np.float32))
        kernel(scores, v, np.zeros(32, np.float32), results[-1])
    wanted = np.exp2(scores.astype(np.float64)) @ v.astype(np.float64)
    errors = [np.abs(found - wanted).max() for found in results]
    assert errors[0] < 0.2 < errors[1]


FAULTS = {
    "no setup": (r"  (tail )?call void @llvm\.x86\.ldtilecfg.*\n", "", "no tiles are configured"),
    "no release": (r"  (tail )?call void @llvm\.x86\.tilerelease.*\n", "",
                   r"tiles of \d threads were not released"),
    "rows": (r"\\10\\10\\10\\10\\10\\10\\10\\10\\00", r"\\10\\10\\10\\10\\08\\08\\10\\10\\00",
             r"tdpbf16ps of tiles .*16 x 64, 8 x 64 and 16 x 64 bytes do not fit together"),
    "too many rows": (r"\\10\\10\\10\\10\\10\\10\\10\\10\\00",
                      r"\\11\\10\\10\\10\\10\\10\\10\\10\\00", "tile 0 has 17 rows of 64 bytes"),
    "palette": (r"c\"\\01\\00", r'c"\\02\\00', "expected palette 1, found 2"),
    "reserved byte": (r"c\"\\01\\00\\00", r'c"\\01\\00\\07', "expected 0 in byte 2, found 7"),
    "an unknown tile": (r"tilezero\(i8 1\)", "tilezero(i8 9)", "tile 9: expected 0 to 7"),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", FAULTS)
def test_what_a_processor_traps_on_is_an_error(name, artifacts):
    pattern, changed, message = FAULTS[name]
    func = product(64, 64, 64, "bfloat16")
    a, b = (operand((64, 64), "bfloat16", seed) for seed in range(2))
    out = blank((64, 64), "float32")
    kernel = with_bug(func, TILES, artifacts, pattern, changed)
    with pytest.raises(EmulationError, match=rf"TC307.*main: .*{message}"):
        kernel(a, b, out)
    right = runtime.load(compile(func, f"emulated {TILES}", store=artifacts))
    right(a, b, out)
    expect(a, b, out, 64)


def test_threads_may_call_one_kernel(artifacts):
    func = product(64, 64, 64, "int8")
    kernel = runtime.load(compile(func, f"emulated {TILES}", store=artifacts))
    a, b = operand((64, 64), "int8", 3), operand((64, 64), "int8", 4)
    outputs = [blank((64, 64), "int32") for _ in range(40)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda out: kernel(a, b, out), outputs))
    for out in outputs:
        expect(a, b, out, 64)


def test_an_instruction_that_nothing_stands_in_for_is_named():
    text = text_of(product(16, 16, 16, "float32"), "avx512")
    unknown = "declare <16 x float> @llvm.x86.avx512.mystery.ps.512(<16 x float>)\n"
    with pytest.raises(EmulationError, match=r"TC307.*llvm\.x86\.avx512\.mystery\.ps\.512"):
        x86.to_avx2(text + unknown, "main")
    assembly = '  call void asm sideeffect "vzeroall", ""()\n'
    with pytest.raises(EmulationError, match=r"TC307.*vzeroall"):
        x86.to_avx2(text + assembly, "main")


# --- the library ------------------------------------------------------------------------------

BF16, F16 = {"dtype": "bfloat16"}, {"dtype": "float16"}
INT8 = {"dtype": "int8", "accum_dtype": "int32", "out_dtype": "int32"}
ATTENTION = {"batch": 1, "heads": 4, "kv_heads": 2, "seq_q": 33, "seq_kv": 70, "dim": 32}
SMALL = {"block_M": 16, "block_N": 32}
TILED = {"block_M": 32, "block_N": 48, "block_K": 40}
# Kernel, problem (nothing divides anything), config; types and flags vary with the number of a run.
LIBRARY = [
    ("gemm", {"m": 33, "n": 70, "k": 90}, TILED),
    ("gemm", {"m": 61, "n": 50, "k": 77, "transpose_a": True, "transpose_b": True}, TILED),
    ("gemm", {"m": 45, "n": 49, "k": 130, "transpose_b": True, **F16}, TILED),
    ("gemm", {"m": 70, "n": 90, "k": 45, "transpose_a": True, **BF16}, TILED),
    ("gemm", {"m": 33, "n": 50, "k": 130, "transpose_b": True, **BF16}, TILED),
    ("gemm", {"m": 61, "n": 70, "k": 77, **INT8}, TILED),
    ("gemm", {"m": 20, "n": 33, "k": 100, "transpose_b": True, **INT8, "dtype": "uint8"}, TILED),
    ("gemm", {"m": 1, "n": 77, "k": 200, "transpose_b": True}, {}),
    ("gemm", {"m": 3, "n": 77, "k": 200, "transpose_b": True, **BF16}, {}),
    ("batched_gemm", {"batch": 3, "m": 33, "n": 50, "k": 70, **BF16}, TILED),
    ("split_k_gemm", {"m": 20, "n": 70, "k": 330}, {**TILED, "splits": 4}),
    ("split_k_gemm", {"m": 20, "n": 70, "k": 330, **BF16}, {**TILED, "splits": 4}),
    *[
        ("gemm_epilogue", {"m": 37, "n": 50, "k": 45, "activation": act, "residual": True, **kind},
         {**SMALL, "block_K": 16})
        for act, kind in (("gelu", {}), ("gelu_tanh", BF16), ("silu", F16))
    ],
    ("grouped_gemm", {"experts": 4, "m": 70, "n": 50, "k": 33, **BF16}, {"block_M": 8}),
    ("grouped_gemm", {"experts": 3, "m": 30, "n": 40, "k": 20, "transpose_b": True}, SMALL),
    ("conv2d", {"batch": 1, "height": 9, "width": 7, "channels": 8, "filters": 33, "padding": 1,
                **BF16}, {**SMALL, "block_K": 16}),
    ("conv2d", {"batch": 1, "height": 12, "width": 11, "channels": 3, "filters": 10, "stride": 2},
     {**SMALL, "block_K": 16}),
    ("dequant_gemm", {"m": 33, "n": 50, "k": 128, "group": 32}, {"block_M": 32}),
    ("dequant_gemm", {"m": 5, "n": 70, "k": 200, "group": 40, "format": "nf4"}, {"block_M": 8}),
    ("dequant_gemm", {"m": 3, "n": 64, "k": 128, "format": "float8_e4m3fn"}, {"block_M": 4}),
    ("dequant_gemm", {"m": 1, "n": 70, "k": 256, "dtype": "float32"}, {"block_M": 1}),
    ("attention", ATTENTION, SMALL),
    ("attention", {**ATTENTION, "causal": True, **BF16}, SMALL),
    ("attention", {**ATTENTION, "dim": 40, **BF16}, SMALL),
    ("attention_backward", {**ATTENTION, "causal": True}, {"block_M": 32, "block_N": 32}),
    ("attention_backward", {**ATTENTION, **BF16}, {"block_M": 32, "block_N": 32}),
    ("decode_attention", {**ATTENTION, "seq_q": 1}, {"splits": 2, "streams": 4, "block_N": 16}),
    ("decode_attention", {**ATTENTION, "seq_q": 3, "causal": True, **BF16},
     {"splits": 2, "streams": 4, "block_N": 16}),
    ("linear_attention", {"batch": 1, "heads": 2, "seq_len": 70, "dim": 40, "dim_v": 24},
     {"chunk": 32, "block_DV": 32}),
    ("linear_attention", {"batch": 1, "heads": 2, "seq_len": 70, "dim": 32, "dim_v": 40, **BF16},
     {"chunk": 32, "block_DV": 32}),
    *[
        (name, {"m": 20, "n": 203, **kind}, {"block_M": 4})
        for name, kind in (("softmax", {}), ("rms_norm", F16), ("layer_norm", BF16))
    ],
]  # fmt: skip


# Of the runs above, what repeats a kernel: its types, shapes and flags are those of another run.
REPEATED = {10, 14, 16, 18, 21, 25, 26, 28, 30}


def library_ids(run):
    name, fields, _ = run
    return "-".join([name, str(fields.get("dtype", "float32")), str(fields.get("m", ""))])


TARGETS = ("avx512", VECTOR, TILES, CLIENT)


def targets_of(dtype, number, config):
    """Return the targets that a case is run on: one or two, unless pytest is asked for all."""
    if config.getoption("--emulated"):
        return TARGETS
    if dtype in ("float32", "float16"):
        return ("avx512",)
    chosen = (TILES if number % 3 else VECTOR,)
    return (*chosen, CLIENT) if dtype in ("int8", "uint8") else chosen


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run, marks=[pytest.mark.exhaustive] if number in REPEATED else [])
        for number, run in enumerate(LIBRARY)
    ],
    ids=library_ids,
)
def test_the_library_computes_the_same(run, artifacts, pytestconfig):
    name, fields, config = run
    definition = kernels.get(name)
    own = {f.name for f in definition.fields}
    if "out_dtype" in own and "dtype" in fields:
        fields = {"out_dtype": fields["dtype"], **fields}
    problem = definition.parse_problem(fields)
    inputs = definition.inputs(problem, np.random.default_rng())
    expected = definition.reference(problem, inputs)
    kind = str(problem.get("out_dtype", problem["dtype"]))
    rounded = definition.rounded_dtype and definition.rounded_dtype(problem)
    rtol, atol = tolerance(kind, "float32", definition.reduction_length(problem), rounded)
    for target in targets_of(problem["dtype"], LIBRARY.index(run), pytestconfig):
        program = definition.program(problem, {**definition.default_config(), **config})
        artifact = compile(program, f"emulated {target}", store=artifacts)
        found = [blank(e.shape, kind) for e in expected]
        runtime.load(artifact)(*inputs, *found)
        for one, wanted in zip(found, expected, strict=True):
            report = compare(one, wanted, rtol, atol)
            assert report.passed, f"{artifact.manifest.isa}: {report.detail}"


@pytest.mark.parametrize(("number", "dtype"), enumerate(("float32", "bfloat16", "int8")))
def test_weights_that_are_kept_packed(number, dtype, pytestconfig):
    definition = kernels.get("gemm")
    kinds = {"int8": INT8, "bfloat16": {**BF16, "out_dtype": "bfloat16"}}.get(dtype, {})
    problem = definition.parse_problem({"m": 20, "n": 77, "k": 90, **kinds})
    a, b = definition.inputs(problem, np.random.default_rng(3))
    (expected,) = definition.reference(problem, [a, b])
    bounds = tolerance(str(problem["out_dtype"]), "float32", 90)
    for target in targets_of(dtype, number + 1, pytestconfig):
        program = definition.program(problem, {**definition.default_config(), **TILED})
        kernel = tilelang.compile(program, target=f"emulated {target}")
        found = np.zeros((20, 77), DType(problem["out_dtype"]).numpy)
        kernel.keep(B=b)(a, found)
        report = compare(found, expected, *bounds)
        assert report.passed, report.detail
