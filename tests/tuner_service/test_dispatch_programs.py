"""Dispatch tables for programs of the user's: by command line and Python, run by Dispatcher."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilecore as tilelang
import tilecore.language as T
from recommender.shapes import Sizes
from tests.recommender import user_programs as programs
from tests.tuner_service.test_cli import cli  # noqa: F401
from tests.tuner_service.test_dispatching import work
from tilecore.dispatch_reader import load_table, read_table
from tilecore.dispatcher import Dispatcher, StaleTable
from tilecore.errors import TileError
from tuner_service import wiring
from tuner_service.cli import dispatching
from tuner_service.dispatch.programs import FunctionForDispatch, dispatch_program, split_given
from tuner_service.dispatch.shapes import AskedTable
from tuner_service.jobs import Effort

FILE = Path(programs.__file__)
MATMUL = f"{FILE}:matmul"
GIVEN = ["--n", "72", "--k", "40", "--set", "dtype=float32", "--set", "num_stages=2"]


@tilelang.jit
def doubled_rows(N, block_M=32, block_N=32):
    """A program that finds out its rows at the call."""
    rows = T.dynamic("rows")

    @T.prim_func
    def main(A: T.Tensor((rows, N), "float32"), B: T.Tensor((rows, N), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(rows, block_M)) as (bx, by):
            for i, j in T.Parallel(block_M, block_N):
                r, c = by * block_M + i, bx * block_N + j
                if r < rows and c < N:
                    B[r, c] = A[r, c] * 2.0 + 1.0

    return main


@tilelang.jit
def eager_scaled(A, block_N: int = 64):
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B = T.empty([N], T.float32)
    with T.Kernel(T.ceildiv(N, block_N)) as b:
        for i in T.Parallel(block_N):
            B[b * block_N + i] = A[b * block_N + i] * 3.0
    return B


@pytest.fixture
def here(settings, monkeypatch):
    """The data folder of this process."""
    monkeypatch.setenv("TILECORE_DATA_DIR", str(settings.data_dir))
    return settings


def product_is_right(run, m, rng, n=72, k=40):
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    a, b = a.astype(np.float32), b.astype(np.float32)
    np.testing.assert_allclose(
        run(a, b), a.astype(np.float64) @ b.astype(np.float64), rtol=2e-5, atol=2e-4
    )


@pytest.mark.exhaustive
def test_a_table_by_the_command_line_runs_the_program_at_every_size(cli, tmp_path):  # noqa: F811
    path = tmp_path / "table.json"
    status, shown, said = cli(
        "dispatch", MATMUL, *GIVEN, "--m", "1:300", "--samples", "5", "--output", str(path)
    )
    assert status == 0, said
    assert "0% of the calls rest on measurements" in shown
    table = load_table(path)
    assert (table.kernel, table.dims, table.span) == ("matmul", ("M",), ((1, 300),))
    assert dict(table.problem) == {"N": 72, "K": 40, "dtype": "float32", "num_stages": 2}
    assert all(set(c) >= {"block_M", "block_N", "block_K"} for c in table.configs)
    assert len(table.program_digest) == 32
    with warnings.catch_warnings():
        warnings.simplefilter("error", StaleTable)
        run = Dispatcher(path, program=programs.matmul)
    rng = np.random.default_rng(11)
    for m in (1, 3, 17, 64, 129, 300, 411):
        product_is_right(run, m, rng)
    assert run.doubts == ()
    whole = run.config_for(M=300)
    assert whole == table.configs[table.choose((300,))]


def test_another_version_of_the_program_is_told_of(here):
    table = dispatch_program(programs.matmul, {"M": "16,64"}, N=64, K=64, dtype="float32")

    @tilelang.jit(out_idx=-1)
    def matmul(M, N, K, block_M, block_N, block_K, num_stages, threads, dtype):
        return programs.matmul.program(
            M, N, K, block_M=block_M, block_N=block_N, block_K=block_K, num_stages=num_stages,
            threads=threads * 2, dtype=dtype,
        )  # fmt: skip

    with pytest.warns(StaleTable, match="made for program"):
        run = Dispatcher(table, program=matmul)
    assert len(run.doubts) == 1


def test_dynamic_axes_are_dimensions(here):
    table = dispatch_program(doubled_rows, {"rows": "1:500"}, N=48, samples=4)
    assert (table.dims, dict(table.problem)) == (("rows",), {"N": 48})
    assert read_table(table.to_json()).program_digest == table.program_digest
    run = Dispatcher(table, program=doubled_rows)
    rng = np.random.default_rng(12)
    for rows in (1, 5, 63, 500, 733):
        a = rng.standard_normal((rows, 48)).astype(np.float32)
        b = np.empty_like(a)
        run(a, b)
        np.testing.assert_allclose(b, a.astype(np.float64) * 2 + 1, rtol=1e-6)
    dynamic = [kernel for kernel in run._dynamic.values() if kernel is not None]
    assert dynamic, "sizes between the table's shapes share a kernel"


def test_extents_of_an_eager_function_are_dimensions(here):
    table = dispatch_program(eager_scaled, {"N": [100, 1000, 70_000]})
    run = Dispatcher(table, program=eager_scaled)
    rng = np.random.default_rng(13)
    for n in (7, 100, 999, 70_000):
        a = rng.standard_normal(n).astype(np.float32)
        np.testing.assert_allclose(run(a), a.astype(np.float64) * 3, rtol=1e-6)


def test_knobs_by_other_names_get_their_values_from_whoever_asks(here):
    @tilelang.jit
    def halved(N, width=8):
        @T.prim_func
        def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
            with T.Kernel(T.ceildiv(N, width)) as b:
                for i in T.Parallel(width):
                    if b * width + i < N:
                        B[b * width + i] = A[b * width + i] / 2.0

        return main

    table = dispatch_program(halved, {"N": "16:4096"}, samples=3, space={"width": [16, 64]})
    assert {c["width"] for c in table.configs} <= {16, 64}
    a = np.random.default_rng(15).standard_normal(501).astype(np.float32)
    b = np.empty_like(a)
    Dispatcher(table, program=halved)(a, b)
    np.testing.assert_array_equal(b, a / 2)


def test_two_dimensions_and_a_function_without_decoration(here):
    def added(M, N, block_M=16, block_N=64):
        @T.prim_func
        def main(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32")):
            with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M)) as (bx, by):
                for i, j in T.Parallel(block_M, block_N):
                    r, c = by * block_M + i, bx * block_N + j
                    if r < M and c < N:
                        B[r, c] = A[r, c] + 1.0

        return main

    table = dispatch_program(added, {"M": [8, 100], "N": [33, 500]})
    assert (table.dims, table.rule) == (("M", "N"), "nearest")
    run = Dispatcher(table, program=tilelang.jit(added))
    a = np.random.default_rng(14).standard_normal((61, 77)).astype(np.float32)
    b = np.empty_like(a)
    run(a, b)
    np.testing.assert_allclose(b, a.astype(np.float64) + 1, rtol=1e-6)


def test_a_tuned_table_rests_on_measurements_of_the_program(settings, store):
    store.save_hardware(replace(wiring.detected_host(), source="measured 2026-11-22"))
    asked = AskedTable(
        kernel="matmul", problem={"N": 64, "K": 64, "dtype": "float32"},
        sizes={"M": Sizes(values=(16, 256))}, program=FunctionForDispatch.of(programs.matmul),
    )  # fmt: skip
    effort = Effort(max_trials=6, time_limit_s=60)
    choice = dispatching.Choice()
    table, _ = dispatching.make_table(settings, asked, choice, effort=effort, follow=work)
    assert table.measured_share() == pytest.approx(1.0)
    runs = store.runs.list()
    assert {r.workload.kernel[:8] for r in runs} == {"program:"}
    assert {dict(r.workload.problem)["M"] for r in runs} == {16, 256}
    again, _ = dispatching.make_table(settings, asked, choice)  # from what is known now
    assert again.measured_share() == pytest.approx(1.0)
    assert Dispatcher(table, program=programs.matmul).doubts == ()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--m", "0:8"], "RC611"), (["--m", "64"], "RC611"),
        (["--m", "1:8", "--set", "q=1"], "TC502"),
        (["--m", "1:8", "--set", "q=1:8"], "TC502"), (["--m", "1:8", "--threads", "9999"], "SV907"),
        (["--m", "1:8", "--hardware", "abacus"], "RC601"),
    ],
)  # fmt: skip
def test_bad_input_is_one_message(cli, arguments, said):  # noqa: F811
    status, _, complaint = cli("dispatch", MATMUL, *GIVEN, *arguments)
    assert status in (1, 2)
    assert said in complaint
    assert "Traceback" not in complaint


def test_a_size_that_the_python_asks_for_cannot_be_a_dimension(here):
    @tilelang.jit(out_idx=-1)
    def by_size(M, N, block_M=16, block_N=32):
        half = 2 if M > 100 else 1

        @T.prim_func
        def main(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32")):
            with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M)) as (bx, by):
                for i, j in T.Parallel(block_M, block_N):
                    B[by * block_M + i, bx * block_N + j] = (
                        A[by * block_M + i, bx * block_N + j] * half
                    )

        return main

    with pytest.raises(TileError) as caught:
        dispatch_program(by_size, {"M": "64,128"}, N=64)
    assert caught.value.code == "RC611"
    assert "asks for" in caught.value.message


def test_arguments_with_several_sizes_are_dimensions():
    fixed, sizes = split_given({"M": "1:8", "N": 64, "dtype": "float16", "L": "4,4", "S": "1,16"})
    assert fixed == {"N": 64, "dtype": "float16", "L": 4}
    assert sizes == {"M": Sizes(low=1, high=8), "S": Sizes(values=(1, 16))}
