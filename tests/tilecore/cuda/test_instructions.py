"""Every instruction's PTX is taken by the assembler for the architecture it names."""

import re

import pytest

from tests.tilecore.cuda.catalog import catalog
from tilecore.codegen.cuda import HEADER
from tilecore.codegen.nvrtc import compile_cuda, load_nvrtc
from tilecore.errors import UnsupportedOnTarget
from tilecore.gpu_target import capability, find_gpu_target
from tilecore.lowering.cuda import instructions as I

needs_nvrtc = pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")


def _wrapper(instruction):
    """Return a kernel that calls the instruction with arguments of the right types."""
    given = []
    for count, parameter in enumerate(filter(None, instruction.parameters.split(","))):
        ctype = parameter.strip().rpartition(" ")[0]
        given.append("local" if ctype in ("void*", "const void*") else f"({ctype})s[{count}]")
    call = f"{instruction.name}({', '.join(given)})"
    if "asm" not in instruction.body or instruction.returns != "void":
        call = call if instruction.returns == "void" else f"*({_ctype(instruction)}*)out = {call}"
    # Words of the largest fragment.
    size = 128 if re.search(r"n256|keep|_128$", instruction.name) else 32
    return (
        f'extern "C" __global__ void k_{instruction.name}(const int* s, void* out) {{\n'
        f"  __align__(16) float local[{size}];\n"
        f"  for (int i = 0; i < {size}; ++i) local[i] = s[i];\n  {call};\n"
        f"  for (int i = 0; i < {size}; ++i) ((float*)out)[i] = local[i];\n}}\n"
    )


def _ctype(instruction):
    return instruction.cuda.split("__device__ ")[1].rsplit(f" {instruction.name}(", 1)[0]


@pytest.mark.few(1)
@needs_nvrtc
@pytest.mark.parametrize(
    "arch", ["sm_70", "sm_75", "sm_80", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120a"]
)
def test_the_assembler_takes_every_instruction(arch):
    """Of the last architecture, and of one that has none of its own, those of all before, too."""
    chosen = [i for i in catalog().values() if i.arch == arch != "sm_120a"]
    chosen = chosen or [i for i in catalog().values() if find_gpu_target(arch).has(i.arch)]
    headers = dict.fromkeys(h for i in chosen for h in i.headers)
    includes = "".join(f"#include <{h}>\n" for h in headers)
    at = "sm_75" if arch == "sm_70" else arch  # CUDA 13 generates no code for sm_70
    text = HEADER + includes + "".join(i.cuda + _wrapper(i) for i in chosen)
    cubin = compile_cuda(text, at)
    assert {f"k_{i.name}" for i in chosen} <= set(cubin.kernels)


def test_operands_of_every_asm_statement_are_those_its_text_names():
    for instruction in catalog().values():
        for statement in re.findall(r"asm(?: volatile)?\((.*)\);", instruction.body):
            text = re.match(r'"((?:[^"\\]|\\.)*)"', statement).group(1)
            named = {int(n) for n in re.findall(r"(?<!%)%(\d+)", text)}
            given = len(re.findall(r'"[=+]?[rlfdh]"\(', statement))
            if text:
                assert named == set(range(given)), instruction.name


def test_names_and_architectures_are_well_formed():
    for name, instruction in catalog().items():
        assert re.fullmatch(r"tc_\w+", name)
        assert capability(instruction.arch) in (70, 75, 80, 89, 90, 100, 120)
        assert instruction.emulated is not None or "asm" not in instruction.body, name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: I.mma("m16n8k16", "float32", "float32", "float32"), "no tensor core takes"),
        (lambda: I.mma("m16n8k32", "float16", "float16", "float32"), "m16n8k16 of float16"),
        (lambda: I.mma("m16n8k8", "float16", "float16", "float32", "col"), "expected row.col"),
        (lambda: I.wgmma(12, "float16", "float16"), "expected n = 8, 16"),
        (lambda: I.wgmma(40, "int8", "int8", "int32"), "int8: 8, 16, 24"),
        (lambda: I.wgmma(64, "int8", "int8", "int32", b_major="n"), "K-major"),
        (lambda: I.cp_async(6), "expected 4, 8 or 16"),
        (lambda: I.cp_async(8, True), "16 to bypass"),
        (lambda: I.tma_load(6), "1 to 5 axes"),
        (lambda: I.mma_scaled(*2 * ["float4_e2m1fn"], "float8_e4m3fn", 2, 0), "0 or 1 of A"),
        (lambda: I.mma_scaled(*2 * ["float4_e2m1fn"], "float8_e8m0fnu", 0, 0, 1), "multiple of 2"),
        (lambda: I.mma_scaled(*2 * ["float8_e5m2"], "float8_e4m3fn", 0, 0), "NVFP4, MXFP4 or"),
        (lambda: I.ldmatrix(3), "expected 1, 2 or 4"),
        (lambda: I.descriptor(96, 16, 1024), "expected 0, 32, 64 or 128"),
        (lambda: I.descriptor(128, 16, 1000), "multiple of 16"),
        (lambda: I.atomic("and", "float32"), "integer type"),
    ],
)
def test_what_no_instruction_does_says_what_there_is(make, message):
    with pytest.raises(UnsupportedOnTarget, match=message):
        make()
