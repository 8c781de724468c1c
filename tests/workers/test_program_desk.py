"""Programs that somebody sent: looked at in child processes, checked without a reference."""

import json
from dataclasses import replace

import numpy as np
import pytest

import tilecore.language as T
from recommender.hardware import load_profile
from recommender.portable_tracing import portable
from recommender.program_table import look_around
from recommender.workload import ProgramSource, Workload, kernel_name
from tests.recommender import user_programs as programs
from tilecore.advice import question_of
from tilecore.errors import InvalidDocument, InvalidProblem
from tilecore.tile_config import TileConfig
from workers import portable_problem
from workers.errors import DeskBusy, ProgramTooCostly
from workers.portable_problem import COMPILED, ORACLE, PortableProblem, candidate
from workers.program_desk import ProgramDesk
from workers.toolbox import TilecoreToolbox

AVX512 = load_profile("avx512")


def as_data(program, *args, **given):
    return portable(question_of(program, args, given), AVX512)


@pytest.fixture(scope="module")
def desk():
    made = ProgramDesk(limit_s=10, memory_bytes=1 << 30, places=1)
    yield made
    made.close()


def test_a_program_is_read_and_tabulated_by_a_child(desk):
    data = as_data(programs.scaled, 4096, 2.0)
    read = desk.read(json.dumps(data.to_json(), indent=1).encode())
    assert (read.digest, read.document, read.sizes) == (data.digest, data.to_bytes(), ("N",))
    table = desk.table(read.digest, read.document, {"N": 4096}, AVX512, "avx512")
    assert table.config(table.accepted[0])["block_N"] > 0
    assert table is desk.table(read.digest, read.document, {"N": 4096}, AVX512, "avx512")
    with pytest.raises(InvalidDocument, match="/schema"):
        desk.read(b"{}")


def doubled(data, times):
    """The program with an offset that doubles with each of some variables: 2^times terms."""
    document = data.to_json()
    program = document["variants"][0]["program"]
    first = len(program["vars"])
    program["vars"] += [[f"x{n}", "int32"] for n in range(times + 1)]
    body = program["body"]["stmts"][0]["body"]["stmts"]
    copy = next(s for s in body if s["node"] == "copy")
    copy["src"][1][0] = ["add", copy["src"][1][0], ["var", first + times]]
    lets = [{"node": "let", "var": first, "value": ["var", program["body"]["stmts"][0]
             ["block_vars"][0]]}]  # fmt: skip
    lets += [
        {"node": "let", "var": n, "value": ["add", ["var", n - 1], ["var", n - 1]]}
        for n in range(first + 1, first + times + 1)
    ]
    body[:0] = lets
    return json.dumps(document).encode()


def test_a_program_that_costs_too_much_is_refused_and_others_go_on():
    data = as_data(programs.scaled, 4096, 2.0)
    desk = ProgramDesk(limit_s=2.0, memory_bytes=1 << 30, places=1)
    try:
        read = desk.read(doubled(data, 60))
        with pytest.raises(ProgramTooCostly, match=r"within 2 s and 1\.0 GiB, found one"):
            desk.table(read.digest, read.document, {"N": 4096}, AVX512, "avx512")
        assert desk.read(data.to_bytes()).digest == data.digest
        assert desk.table("few", doubled(data, 2), {"N": 4096}, AVX512, "avx512").accepted
    finally:
        desk.close()


def test_nobody_waits_for_ever_for_a_desk(monkeypatch):
    desk = ProgramDesk(places=1)
    monkeypatch.setattr("workers.program_desk.WAIT_S", 0.05)
    desk._free.get()
    with pytest.raises(DeskBusy, match="1 busy"):
        desk.read(b"{}")


# --- checks without a reference function ----------------------------------------------------------


def problem_of(data, problem, reference, tmp_path, monkeypatch=None):
    source = ProgramSource(data.to_bytes(), TileConfig.of(reference))
    workload = Workload(kernel_name(data.digest), tuple(problem.items()), source=source)
    tools = TilecoreToolbox()
    return tools, workload, tools.problem(workload)


def measured(tools, workload, problem, config, tmp_path):
    compiled = tools.compile(workload, TileConfig.of(config), tmp_path)
    return problem.check(problem.bind(__import__("pathlib").Path(compiled.path)))


KNOBS = {"block_M": 32, "block_N": 32, "block_K": 16, "num_stages": 1, "threads": 128}


@pytest.mark.few(1)
@pytest.mark.parametrize("judge", [ORACLE, COMPILED])
def test_candidates_agree_with_the_reference_config(judge, tmp_path, monkeypatch):
    if judge == COMPILED:
        monkeypatch.setattr(portable_problem, "ORACLE_S", 0.0)
    data = as_data(programs.matmul, M=96, N=80, K=64)
    tools, workload, problem = problem_of(data, {"M": 96, "N": 80, "K": 64}, KNOBS, tmp_path)
    assert isinstance(problem, PortableProblem)
    assert problem.judge == judge
    for block in (16, 64):
        assert measured(tools, workload, problem, {**KNOBS, "block_M": block}, tmp_path).passed


def depends(N, block_N):
    """A program that computes something else for another value of its knob."""

    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), threads=128) as bx:
            for i in T.Parallel(block_N):
                B[bx * block_N + i] = A[bx * block_N + i] + T.cast(bx, "float32")

    return main


def test_a_candidate_that_computes_something_else_is_told_by_whom(tmp_path):
    data = as_data(depends, 256)
    tools, workload, problem = problem_of(data, {"N": 256}, {"block_N": 32}, tmp_path)
    assert measured(tools, workload, problem, {"block_N": 32}, tmp_path).passed
    wrong = measured(tools, workload, problem, {"block_N": 64}, tmp_path)
    assert not wrong.passed
    assert "by the interpreter, input seed" in wrong.detail


def in_place(N, block_N=64):
    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), n: T.int32):
        with T.Kernel(T.ceildiv(N, block_N), threads=128) as bx:
            for i in T.Parallel(block_N):
                X[bx * block_N + i] = X[bx * block_N + i] * T.cast(n, "float32")

    return main


def test_tensors_written_in_place_start_anew_and_integers_are_sizes(tmp_path):
    data = as_data(in_place, 300)
    assert data.call_sizes == ("n",)
    tools, workload, problem = problem_of(
        data, {"N": 300, "n": 3}, {"block_N": 64}, tmp_path)  # fmt: skip
    for block in (32, 128, 32):
        assert measured(tools, workload, problem, {"block_N": block}, tmp_path).passed
    np.testing.assert_allclose(problem.arguments[0], problem.initial[0] * 3, rtol=1e-6)


def test_dynamic_axes_are_measured_as_such(tmp_path):
    data = as_data(programs.dynamic, 64)
    tools, workload, problem = problem_of(
        data, {"N": 64, "M": 100}, {"block_M": 32}, tmp_path)  # fmt: skip
    func, _ = candidate(workload, workload.source, TileConfig.of(block_M=16))
    assert func.buffers[0].static_shape is None
    assert measured(tools, workload, problem, {"block_M": 16}, tmp_path).passed


def with_scale(N, block_N=64):
    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), scale: T.float32):
        with T.Kernel(T.ceildiv(N, block_N), threads=128) as bx:
            for i in T.Parallel(block_N):
                X[bx * block_N + i] = X[bx * block_N + i] * scale

    return main


def test_a_parameter_without_a_value_is_named(desk, tmp_path):
    data = as_data(with_scale, 64)
    assert desk.read(data.to_bytes()).unfit == ("scale",)
    with pytest.raises(InvalidProblem, match="scale"):
        problem_of(data, {"N": 64}, {"block_N": 32}, tmp_path)


def test_the_source_travels_and_is_no_part_of_the_key():
    source = ProgramSource(b"{}", TileConfig.of(a=1))
    plain = Workload.of("program:" + "0" * 32, {"N": 1})
    carrying = replace(plain, source=source)
    assert (carrying, carrying.key) == (plain, plain.key)


def test_what_a_table_leaves_out_is_looked_at_by_a_child(desk):
    by_8 = tuple(range(8, 521, 8))
    sizes = {"M": 512, "N": 512, "K": 512}
    space = {"block_M": by_8, "block_N": by_8, "block_K": by_8}
    data = portable(question_of(programs.matmul, (), sizes, space=space), AVX512)
    document = data.to_bytes()
    table = desk.table(data.digest, document, sizes, AVX512, "avx512")
    assert not table.is_whole
    centre = table.configs[0]
    found = desk.around(document, sizes, AVX512, [centre], threads=2)
    expected = look_around(data, sizes, AVX512, [centre], threads=2)
    assert found.configs == expected.configs
    assert found.time_s.tolist() == expected.time_s.tolist()
    assert set(found.configs) - set(table.configs)
