"""Programs that say ``import tilelang`` and ``device="cuda"`` run here."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore.compat import runner, survey
from tilecore.compat.__main__ import main
from tilecore.compat.device import cuda_on_cpu
from tilecore.compat.modules import aliased

ADD = """
import sys
import tilelang
import tilelang.language as T
import torch
from tilelang.profiler import do_bench

@tilelang.jit(target="cuda")
def add(A, B):
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B: T.Tensor[[N], T.float32]
    C = T.empty([N], T.float32)
    with T.Kernel(T.ceildiv(N, 64), threads=64) as b:
        for i in T.Parallel(64):
            C[b * 64 + i] = A[b * 64 + i] + B[b * 64 + i]
    return C

n = int(sys.argv[1]) if len(sys.argv) > 1 else 100
x, y = torch.randn(n, device="cuda"), torch.randn(n).cuda()
assert x.is_cuda and torch.cuda.get_device_capability() >= (8, 0)
torch.testing.assert_close(add(x, y), x + y)
assert do_bench(lambda: add(x, y), n_repeat=2) > 0
"""
TESTS = """
import numpy as np
import pytest
import tilelang.testing

@tilelang.testing.requires_cuda
def test_passes():
    assert True

@tilelang.testing.requires_rocm
def test_skipped():
    raise AssertionError

def test_fails():
    pytest.importorskip("sys")
    assert 1 == 2

def test_expects_an_error():
    with pytest.raises(ValueError):
        pass
"""
READS = """
import tilelang
import tilelang.language as T

@T.prim_func
def main(A: T.Tensor((8,), "float32")):
    with T.Kernel(1):
        A[0] = 1.0

assert "__global__" in tilelang.compile(main).get_kernel_source()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text("VALUE = 3\n")
    (tmp_path / "add.py").write_text(ADD)
    (tmp_path / "test_file.py").write_text(TESTS)
    (tmp_path / "sized.py").write_text(
        "import tilelang\ndef check(size=1 << 40):\n    assert size == 7\n"
    )
    (tmp_path / "reads.py").write_text(READS)
    (tmp_path / "primitive.py").write_text(
        "import tilelang\nimport tilelang.language as T\nT.tma_scatter4\n"
    )
    (tmp_path / "package.py").write_text("import tilelang\nimport no_such_package\n")
    (tmp_path / "neighbour.py").write_text(
        "import tilelang\nfrom helper import VALUE\nassert VALUE == 4, 'three'\n"
    )
    (tmp_path / "crash.py").write_text("import tilelang, os\nos.abort()\n")
    (tmp_path / "plain.py").write_text("import tilelang\nprint(tilelang.cdiv(5, 2))\n")
    return tmp_path


def test_a_program_for_cuda_runs_with_its_arguments(folder: Path) -> None:
    runner.run(folder / "add.py", ["70"])
    assert "tilelang" not in sys.modules
    assert not torch.cuda.is_available()


def surveyed(folder: Path, limit: int) -> tuple[dict[str, list[str]], str]:
    """Return the table's rows by program, and the table."""
    out = folder / "table.md"
    given = folder / "arguments.toml"
    given.write_text('"add.py" = ["33"]\n"sized.py" = {check = {size = 7}}\n')
    command = [sys.executable, "-m", "tilecore.compat", "--survey", str(folder), "--jobs", "2"]
    done = subprocess.run(
        [*command, "--limit", str(limit), "--out", str(out), "--arguments", str(given),
         "--tests", "-p no:randomly"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in out.read_text().splitlines()]
    return {row[0].split()[0]: row[1:] for row in rows if ".py" in row[0]}, out.read_text()


def test_a_test_imports_the_examples_beside_it(tmp_path: Path) -> None:
    for name in ("examples/sums", "testing/python"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "examples/sums/one.py").write_text("VALUE = 7\n")
    program = tmp_path / "testing/python/check.py"
    program.write_text("from examples.sums.one import VALUE\nassert VALUE == 7\n")
    runner.run(program)


def test_options_of_pytest_choose_tests(folder: Path) -> None:
    outcome = runner.attempt(folder / "test_file.py", tests=["-k", "passes or skipped"])
    assert (outcome.kind, outcome.passed, outcome.skipped) == (runner.CHECKED, 1, 1)


@pytest.mark.exhaustive
def test_a_program_that_hangs_is_out_of_time(tmp_path: Path) -> None:
    (tmp_path / "hang.py").write_text("import tilelang, time\ntime.sleep(600)\n")
    found, _ = surveyed(tmp_path, limit=3)
    assert found["hang.py"][0] == runner.TIMED_OUT


def test_a_survey_tells_every_kind_of_outcome(folder: Path) -> None:
    found, table = surveyed(folder, limit=300)
    assert set(found) == {p.name for p in survey.programs(folder)}
    assert "helper.py" not in found
    assert folder / "helper.py" in survey.programs(folder, every=True)
    assert found["add.py"][0] == runner.CHECKED, found["add.py"]
    assert "| add.py 33 |" in table
    assert "| sized.py check(size=7) |" in table
    assert found["sized.py"][0] == runner.CHECKED
    assert found["plain.py"][0] == runner.RAN
    assert found["reads.py"][0] == runner.READS_CODE
    assert found["primitive.py"][0] == runner.MISSING_PRIMITIVE
    assert "TC102" in found["primitive.py"][-1]
    assert found["package.py"][0] == runner.MISSING_PACKAGE
    assert "no_such_package (package.py:2)" in found["package.py"][-1]
    assert found["neighbour.py"][0] == runner.WRONG
    assert "three (neighbour.py:3)" in found["neighbour.py"][-1]
    assert found["crash.py"][0] == runner.FAILED
    assert "-6" in found["crash.py"][-1]
    assert found["test_file.py"][:2] == [runner.WRONG, "1/2/1"]
    assert f"| {runner.EXPECTS_ERROR} | 1 |" in table


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--match", "("], "--match: expected a regular expression, found '('"),  # a traceback
        (
            ["--out", "none/table.md"],
            "--out: expected a file in a folder that exists",
        ),  # at the end
        (["--gpu-out", "."], "--gpu-out: expected a file in a folder that exists, found ."),
        (["--jobs", "0"], "--jobs: expected 1 or more, found 0"),  # without an end
        (["--limit", "nan"], "--limit: expected seconds above 0, found nan"),
        (["--match", "no_such_name"], "found none (--every: all)"),
    ],
)
def test_options_of_a_survey_are_checked_before_it_runs(folder, capsys, options, told) -> None:
    assert main(["--survey", str(folder), *options]) == 2
    shown = capsys.readouterr()
    assert told in shown.err
    assert shown.out == ""


def test_bad_calls_are_told(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([str(folder / "none.py")]) == 2
    assert main(["--survey", str(folder / "none")]) == 2
    assert main(["--survey", str(folder), "--arguments", str(folder / "add.py")]) == 2
    assert "expected a TOML file" in capsys.readouterr().err
    assert main([str(folder / "primitive.py")]) == 2
    assert "TC102" in capsys.readouterr().err


def test_aliases_share_modules_and_end_with_the_block() -> None:
    import tilecore.language

    spec = tilecore.language.__spec__
    with aliased():
        assert importlib.import_module("tilelang.language") is tilecore.language
        assert importlib.import_module("tilelang.jit.kernel").JITKernel
        with pytest.raises(ModuleNotFoundError, match=r"no counterpart of tilelang\.metal"):
            importlib.import_module("tilelang.metal")
    assert tilecore.language.__spec__ is spec
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tilelang.language")


def test_cuda_calls_answer_for_one_device() -> None:
    with cuda_on_cpu((8, 9)):
        assert torch.cuda.get_device_capability() == (8, 9)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        x = torch.zeros(3, device=torch.device("cuda:0")).to("cuda")
        end.record()
        torch.cuda.synchronize()
        assert start.elapsed_time(end) >= 0
        assert x.device == torch.device("cuda:0")
        assert torch.zeros_like(x, device=x.device).is_cpu
        number = torch.cuda.current_device()
        assert torch.zeros(2, device=number).to(number).is_cpu
        assert torch.device(number) == x.device
        with torch.device("cuda"):
            assert torch.ones(2).device.type == "cuda"
        torch.set_default_device("cuda")
        assert torch.ones(2).is_cpu
        torch.set_default_device(None)
        x.record_stream(torch.cuda.current_stream())
        assert not torch.empty(1 << 16, device="cuda").any()
        assert not torch.empty_like(x).any()
        assert torch.nn.Linear(2, 2).cuda()(torch.ones(1, 2).cuda()).shape == (1, 2)
    assert not torch.cuda.is_available()
    assert x.device.type == "cpu"


def test_operators_and_gradients_of_programs_find_the_device() -> None:
    """torch runs these functions itself, with the mode of the caller switched off."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * torch.full((1,), 2.0, device="cuda")

        @staticmethod
        def backward(ctx, grad):
            assert grad.is_cuda
            return grad * torch.full((1,), 2.0, device="cuda")

    with cuda_on_cpu():

        @torch.library.custom_op("tilecore_tests::triple", mutates_args=(), device_types="cuda")
        def triple(x: torch.Tensor) -> torch.Tensor:
            assert x.is_cuda
            return x + torch.full((3,), 2.0, device=x.device) * x

        x = torch.ones(3, device="cuda", requires_grad=True)
        assert torch.equal(triple(x.detach()), torch.full((3,), 3.0))
        Double.apply(x).sum().backward()
        assert torch.equal(x.grad, torch.full((3,), 2.0))
        (grad,) = torch.autograd.grad(Double.apply(x).sum(), x)
        assert torch.equal(grad, torch.full((3,), 2.0))
        state = torch.cuda.get_rng_state()
        first = torch.rand(4, device="cuda")
        torch.cuda.set_rng_state(state)
        assert torch.equal(torch.rand(4, device="cuda"), first)


def test_random_states_and_division_are_those_of_the_device() -> None:
    with cuda_on_cpu():
        with torch.random.fork_rng(devices=[0]):
            torch.manual_seed(0)
        x = torch.arange(1, 1000, device="cuda").float()
        # CUDA multiplies by the reciprocal of a number, which rounds differently.
        assert torch.equal(x / 448.0, x * float(np.float32(1) / np.float32(448)))
        assert torch.equal(x / x, torch.ones_like(x))
    assert not torch.equal(x / 448.0, x * float(np.float32(1) / np.float32(448)))


def test_a_generator_of_cuda_is_one_of_the_cpu() -> None:
    plain = torch.Generator
    with cuda_on_cpu():
        generator = torch.Generator(device="cuda").manual_seed(3)
        found = torch.randperm(9, generator=generator, device="cuda")
    assert torch.Generator is plain
    assert torch.equal(found, torch.randperm(9, generator=plain().manual_seed(3)))


def test_programs_find_the_gpu_that_they_run_for() -> None:
    """Persistent kernels launch by its multiprocessors, and may leave some of them to others."""
    for capability, multiprocessors, shared in (
        ((9, 0), 132, 232448), ((8, 0), 108, 166912), ((7, 0), 80, 98304), ((6, 1), 132, 232448)
    ):  # fmt: skip
        with cuda_on_cpu(capability):
            found = torch.cuda.get_device_properties(0)
        assert (found.major, found.minor) == capability
        assert found.multi_processor_count == multiprocessors
        assert found.shared_memory_per_block_optin == shared
        assert found.shared_memory_per_multiprocessor >= shared


def test_programs_find_the_capability_they_run_for() -> None:
    nvcc = tilelang.contrib.nvcc  # a program imports tilelang alone
    with cuda_on_cpu((8, 6)):
        version = nvcc.get_target_compute_version()
        assert not torch.cuda.is_current_stream_capturing()
    assert version == "8.6"
    assert nvcc.parse_compute_version(version) == (8, 6)


PROGRAM_WITH_TIRX = """
import torch
import tilelang
import tilelang.language as T
from tilelang import tvm as tvm
from tvm import tirx, DataType

def nibble(value: tirx.PrimExpr, place: tirx.PrimExpr):
    mask = tirx.const(15, T.uint16)
    found = (value >> (place.astype(T.uint16) * tirx.const(4, T.uint16))) & mask
    return tirx.Select(tirx.any(found == 3, found == tvm.tirx.IntImm("uint16", 5)),
                       tirx.reinterpret(T.int16, found), tirx.Cast("int16", tirx.Min(found, 9)))

@T.prim_func
def main(A: T.Tensor((8,), T.uint8), B: T.Tensor((16,), T.int16)):
    with T.Kernel(1):
        for i in T.Parallel(16):
            B[i] = nibble(A[i // 2], i % 2)

assert DataType("float16").bits == T.DataType(T.float16).bits == 16
kernel = tilelang.compile(main, out_idx=-1, target=tvm.target.Target("cuda"))
a = torch.arange(8, dtype=torch.uint8, device="cuda") * 31
from tvm.tirx.expr import EQ, And, IntImm, Not, Or, Var

x, y = Var("x", "int32"), Var("y", T.int32)
assert "and" in str(Or(Not(tvm.tirx.all(x < y, And(y < 3, EQ(x, IntImm("int32", 2))))), x > y))
hip = tvm.target.Target("hip -mcpu=gfx950")
assert isinstance(hip, tvm.target.Target) and hip.attrs["mcpu"] == "gfx950"
assert tvm.target.Target.current(allow_none=True) is None
assert tvm.testing.requires_package("sys") and tvm.testing.assert_allclose
want = torch.stack([a & 15, a >> 4], -1).flatten().clamp(max=9).to(torch.int16)
assert torch.equal(kernel(a), want)
"""


def test_programs_get_expressions_of_tilecore_from_tvm(tmp_path) -> None:
    import tvm

    program = tmp_path / "program.py"
    program.write_text(PROGRAM_WITH_TIRX)
    outcome = runner.attempt(program)
    assert outcome.kind == runner.CHECKED, outcome
    assert tvm.__name__ == "tvm"
    assert tvm.tirx.__name__ == "tvm.tirx"


OLDER = """
import torch
import tilelang
import tilelang.language as T
from tilelang.autotuner import autotune, jit
from tilelang.engine.param import KernelParam

def product(A, B):
    return A @ B.T

@autotune(configs=[{"block": 16}, {"block": 32}], keys=["block"], warmup=1, rep=1)
@jit(out_idx=[2], supply_type=tilelang.TensorSupplyType.Integer, ref_prog=product, rtol=1e-2,
     profiler="auto", target="auto")
def kernel(block=None):
    @T.prim_func
    def main(A: T.Buffer((32, 32), "float32"), B: T.Buffer((32, 32), "float32"),
             C: T.Buffer((32, 32), "float32")):
        with T.Kernel(32 // block, 32 // block) as (bx, by):
            a = T.alloc_shared((block, 32), "float32")
            b = T.alloc_shared((block, 32), "float32")
            c = T.alloc_fragment((block, block), "float32")
            T.copy(A[by * block, 0], a)
            T.copy(B[bx * block, 0], b)
            T.gemm(a, b, c, transpose_B=True, clear_accum=True)
            T.copy(c, C[by * block, bx * block])
    return main

best = kernel()
assert best.config["block"] in (16, 32) and best.ref_latency > 0
assert all(isinstance(p, KernelParam) for p in best.params)
a, b = best.get_profiler()._get_inputs()
torch.testing.assert_close(best(a, b), product(a, b))
assert len(best.get_profiler()._get_inputs(with_output=True)) == 3
"""


@pytest.mark.exhaustive
def test_a_program_for_an_older_release(tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(OLDER)
    outcome = runner.attempt(program)
    assert outcome.kind == runner.CHECKED, outcome


REBINDS = """
import numpy as np
import tilelang
import tilelang.language as T

@T.prim_func
def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
    with T.Kernel(1):
        x = A[0]
        for i in T.serial(8):
            B[i] = x
            if i > 2:
                x = A[i]
                B[i] = B[i] + x

a = np.arange(8, dtype=np.float32) + 1
assert (tilelang.compile(main, out_idx=-1)(a) == np.where(a > 3, a + 1, 1)).all()
"""


def test_a_name_bound_anew_in_a_loop_means_what_it_does_in_tilelang(tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(REBINDS)
    with pytest.warns(UserWarning, match="`x` is read and then rebound in a loop"):
        outcome = runner.attempt(program)
    assert outcome.kind == runner.CHECKED, outcome


VISITS = """
import tilelang
import tilelang.language as T
from tvm.ir import PrimExpr
from tvm.tirx.stmt_functor import ir_transform

def twice(value: PrimExpr):
    return value * 2

@T.prim_func
def main(A: T.Tensor((8,), "float32")):
    with T.Kernel(1):
        A[0] = twice(A[1])

assert isinstance(twice(tilelang.tvm.tirx.Var("x", "int32")), PrimExpr)
ir_transform(main, None, None)
"""


def test_a_rewrite_of_tvms_trees_is_refused(tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(VISITS)
    outcome = runner.attempt(program)
    assert outcome.kind == runner.REJECTED
    assert "TC302 tvm.tirx.stmt_functor.ir_transform on target llvm" in outcome.reason


@pytest.mark.exhaustive
def test_a_survey_of_no_program_says_so(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "plain.py").write_text("print(1)\n")
    main(["--survey", str(tmp_path)])
    assert "expected a program that imports tilelang below" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_survey_builds_for_gpus_too(folder: Path) -> None:
    table = folder / "gpu.md"
    given = ["--survey", str(folder), "--match", "^.*/add.py", "--gpu-out", str(table)]
    # In a process of its own: a fork of one that has used NVRTC before waits for its threads.
    command = [sys.executable, "-m", "tilecore.compat", *given, "--compile-for", "sm_80,h100"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "out of time" not in done.stdout
    text = table.read_text()
    assert "| sm_80 | 1 | 1 | 0 |" in text
    assert "| h100 | 1 | 1 | 0 |" in text
    assert main([*given, "--compile-for", "avx2"]) == 2


def test_pass_contexts_configure_what_is_compiled_in_them() -> None:
    @T.prim_func
    def program(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                A[i] = T.exp(A[i])

    def is_fast(**config) -> bool:
        kernel = tilelang.compile(program, target="h100", config=config)
        return "fast math" in str(kernel.explain())

    contexts = importlib.import_module("tilecore.compat.tvm").transform.PassContext
    key = tilelang.PassConfigKey.TL_ENABLE_FAST_MATH
    with contexts(config={key: True}, opt_level=3) as context:
        assert context.config == {"tl.enable_fast_math": True}
        assert contexts.current().config["tl.enable_fast_math"]
        assert is_fast()
        assert not is_fast(fast_math=False)
        with contexts():
            assert not is_fast()
    assert "tl.enable_fast_math" not in contexts.current().config
    assert not is_fast()
    with pytest.warns(UserWarning, match=r"unknown pass_configs tl\.no_such_thing"):
        contexts(config={"tl.no_such_thing": 1})
