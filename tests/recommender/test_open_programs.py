"""Recommendations for programs of users: the library's answer for its kernels, from one trace."""

from dataclasses import replace

import numpy as np
import pytest

from recommender.analytic import estimate, estimate_graph
from recommender.errors import EmptySpace, NoClosedForm, NothingOpen
from recommender.hardware import load_profile
from recommender.open_programs import advise, definition_of
from recommender.recommend import recommend
from recommender.space import space_of
from recommender.tracing import MOST_TRACES, trace_all
from recommender.workload import Workload
from tests.recommender import user_programs as programs
from tests.recommender.support import HOST, MemoryStore
from tilecore.advice import question_of
from tilecore.compiler import check
from tilecore.errors import InvalidProblem, ProgramError, TileError, TypeMismatch
from tilecore.graph import build, sole_contraction
from tilecore.kernels.attention import ATTENTION
from tilecore.kernels.gemm import GEMM
from tilecore.recommending import knob_kind

DEVICES = {"h100": load_profile("h100"), "a100": load_profile("a100"),
           "mi300x": load_profile("mi300x"), "host": HOST}  # fmt: skip
GEMM_SIZES = {"M": 1000, "N": 1024, "K": 2048}
ATTENTION_SIZES = {"B": 4, "H": 16, "S": 2048, "D": 128}


@pytest.fixture(autouse=True)
def without_prior(monkeypatch):
    """What ships with the package is the business of test_prior.py."""
    monkeypatch.setattr("recommender.predict.prior", lambda kernel, hardware: None)


def ask(program, device="h100", *, top_k=5, space=None, cores=0, **given):
    """Return the answer for a device; every config of it has passed tile inference."""
    hardware = DEVICES[device]
    question = question_of(program, (), given, target=device, top_k=top_k, space=space, cores=cores)
    target = hardware.target or "avx512"
    return advise(question, hardware, lambda func, knobs: check(func, target, knobs))


def of_library(definition, problem, device, **changes):
    """Return the library's answer and the values it chooses from."""
    hardware = DEVICES[device]
    canonical = definition.parse_problem(problem)
    ranked = recommend(
        Workload.of(definition.name, canonical), definition, hardware, MemoryStore(), top_k=5
    )
    space = {k.name: k.values_on(hardware.kind) for k in definition.knobs_of(hardware.kind)}
    return ranked, space


def shown(answer):
    return [({**r.config, **getattr(r, "lowering", {})}, r.time_s, r.bound_by) for r in answer]


@pytest.mark.few(1)
@pytest.mark.parametrize("device", DEVICES)
def test_a_gemm_of_a_user_gets_the_answer_of_the_library(device):
    problem = {"m": 1000, "n": 1024, "k": 2048, "dtype": "float16", "out_dtype": "float16"}
    expected, space = of_library(GEMM, problem, device)
    found = ask(programs.matmul, device, space=space, **GEMM_SIZES)
    assert shown(found) == shown(expected)
    assert len(found) == 5
    assert found.traces == 1
    assert not found.notes


@pytest.mark.few(1)
@pytest.mark.parametrize("device", DEVICES)
def test_an_attention_of_a_user_gets_the_answer_of_the_library(device):
    sizes = {"batch": 4, "heads": 16, "kv_heads": 16, "seq_q": 2048, "seq_kv": 2048, "dim": 128}
    expected, space = of_library(ATTENTION, {**sizes, "dtype": "float16"}, device)
    divides = DEVICES[device].kind == "cpu"
    found = ask(programs.attention, device, space=space, **ATTENTION_SIZES, divides=divides)
    assert shown(found) == shown(expected)
    assert found.traces == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("device", DEVICES)
def test_the_values_chosen_here_are_no_worse_than_those_of_the_library(device):
    problem = {"m": 1000, "n": 1024, "k": 2048, "dtype": "float16", "out_dtype": "float16"}
    _, space = of_library(GEMM, problem, device)
    program_knobs = {k: v for k, v in space.items() if k in ask_knobs(programs.matmul)}
    own = ask(programs.matmul, device, **GEMM_SIZES)
    library = ask(programs.matmul, device, space=program_knobs, **GEMM_SIZES)
    assert own[0].time_s <= library[0].time_s * 1.01
    assert own.enumerated >= 2000


def ask_knobs(program):
    return question_of(program, (), GEMM_SIZES, target=None).knobs


PROGRAMS = {
    "gemm": (programs.matmul, GEMM_SIZES),
    "eager gemm": (programs.eager_matmul, GEMM_SIZES),
    "attention": (programs.attention, {"B": 1, "H": 2, "S": 500, "D": 64}),
    "plain function": (programs.scaled, {"N": 1 << 20, "factor": 2.0}),
    "by values": (programs.branching, {"M": 500, "N": 512, "K": 1024}),
    "branch inside": (programs.branching_inside, {"M": 1000, "N": 1000}),
}


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("device", ["h100", "host"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_closed_forms_say_what_a_trace_of_every_config_says(name, device):
    program, sizes = PROGRAMS[name]
    hardware = DEVICES[device]
    question = question_of(program, (), sizes, target=device)
    rng = np.random.default_rng(0)
    for family in trace_all(question, hardware).families[:4]:
        space = space_of(definition_of(question, family), {}, hardware, family.graph)
        times = estimate(space, threads=2).time_s
        for row in rng.integers(0, len(space), 4).tolist():
            graph = build(question.trace(space.config(row)))
            alone = estimate_graph(
                graph, sole_contraction(graph), hardware, space.rows(np.array([row])),
                work_flop=1.0, threads=2,
            )  # fmt: skip
            assert alone.time_s[0] == pytest.approx(times[row], rel=1e-9), space.config(row)


def test_python_that_asks_for_a_knob_gets_its_values():
    found = ask(programs.branching, M=512, N=512, K=1280)
    assert 2 < found.traces <= 2 * MOST_TRACES
    asked, bounded, refused = found.notes
    assert "at most 64 traces: block_M 16, 32, 64, 128, 256" in bounded
    assert asked.startswith("traced for every value of block_M, block_K")
    assert "block_K divides K" in refused
    assert all(1280 % r.config["block_K"] == 0 for r in found)
    assert {type(r.config["threads"]) for r in found} == {int}


def test_a_branch_of_the_kernel_on_a_knob_is_a_choice_of_program():
    found = ask(programs.branching_inside, M=4096, N=4096, top_k=3)
    assert "every value of block_N" in found.notes[0]
    with_exp = ask(programs.branching_inside, M=4096, N=4096, space={"block_N": (128,)})
    without = ask(programs.branching_inside, M=4096, N=4096, space={"block_N": (64,)})
    special = [
        trace_all(
            question_of(programs.branching_inside, (), {"M": 64, "N": 64, "block_N": n},
                        target=None), HOST
        ).families[0].graph.launches[0].ops for n in (64, 128)
    ]  # fmt: skip
    assert [len(ops) for ops in special] == [2, 3]
    assert with_exp[0].config["block_N"] == 128
    assert without[0].config["block_N"] == 64


def test_what_is_given_stays():
    found = ask(programs.matmul, **GEMM_SIZES, block_K=64, threads=256)
    assert all(set(r.config) == {"block_M", "block_N", "num_stages"} for r in found)
    free = ask(programs.matmul, **GEMM_SIZES)
    assert found.enumerated < free.enumerated
    assert found[0].time_s >= free[0].time_s
    narrowed = ask(programs.matmul, **GEMM_SIZES, space={"block_M": [64, 128]})
    assert {r.config["block_M"] for r in narrowed} <= {64, 128}


def test_any_parameter_can_be_named():
    found = ask(programs.matmul, **GEMM_SIZES, space={"dtype": ["float16", "float32"]}, top_k=20)
    assert found[0].config["dtype"] == "float16"  # half the bytes, faster products
    assert "traced for every value of dtype" in found.notes[0]


def test_tiles_end_with_the_problem():
    found = ask(programs.matmul, "host", M=20, N=100, K=1 << 20, top_k=20)
    assert {r.config["block_M"] for r in found} <= {16, 24}
    assert {r.config["block_N"] for r in found} <= {16, 24, 32, 48, 64, 96, 128}
    assert found.work_flop == 2 * 20 * 100 * (1 << 20)


def test_names_that_are_knobs():
    tiles = "block_M BLOCK_M block_n blockM block_size BLOCK_SIZE_M tile_m TILE_K block_H block_M2"
    assert {knob_kind(n) for n in tiles.split()} == {"tile"}
    assert {knob_kind(n) for n in ("num_stages", "stages", "NUM_STAGES")} == {"stages"}
    assert {knob_kind(n) for n in ("threads", "num_threads")} == {"threads"}
    others = "M seqlen block_table block_mask blocks block_indices num_blocks dtype split_k tiles"
    assert {knob_kind(n) for n in others.split()} == {""}


BAD = {
    "nothing open": (
        programs.eager_matmul, {**GEMM_SIZES, "block_M": 64, "block_N": 64, "block_K": 32}, {},
        NothingOpen,
    ),
    "dynamic size": (programs.dynamic, {"N": 64}, {}, NoClosedForm),
    "repeated as data says": (programs.repeated, {"M": 512}, {}, NoClosedForm),
    "missing size": (programs.matmul, {"M": 64}, {}, TypeMismatch),
    "missing size, eager": (programs.eager_matmul, {"M": 64}, {}, TypeMismatch),
    "unknown argument": (programs.matmul, {**GEMM_SIZES, "blockM": 4}, {}, TypeMismatch),
    "unknown argument, eager": (programs.eager_matmul, {**GEMM_SIZES, "n": 4}, {}, TypeMismatch),
    "unknown knob": (programs.matmul, GEMM_SIZES, {"block_Q": (1,)}, TypeMismatch),
    "knob twice": (programs.matmul, {**GEMM_SIZES, "block_M": 4}, {"block_M": (4,)}, TypeMismatch),
    "no values": (programs.matmul, GEMM_SIZES, {"block_M": ()}, TypeMismatch),
    "one value": (programs.matmul, GEMM_SIZES, {"block_M": 64}, TypeMismatch),
    "no number": (programs.matmul, GEMM_SIZES, {"block_M": (64.0,)}, TypeMismatch),
    "mixed": (programs.matmul, GEMM_SIZES, {"block_M": (64, "x")}, TypeMismatch),
    "no legal value": (programs.matmul, GEMM_SIZES, {"threads": (48, 80)}, EmptySpace),
    "refused values": (programs.matmul, GEMM_SIZES, {"block_M": (-1, 0)}, TileError),
    "no program": (len, {}, {}, TypeMismatch),
    "a program": (programs.scaled(64, 2.0, 64), {}, {}, TypeMismatch),
    "fault of the program": (programs.faulty, {"N": 64}, {}, ProgramError),
    "no size": (programs.matmul, {**GEMM_SIZES, "M": "many"}, {}, TileError),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_questions_get_errors_with_codes(case):
    program, given, space, error = BAD[case]
    with pytest.raises(error) as caught:
        ask(program, space=space, **given)
    assert caught.value.code[:2] in ("TC", "RC")
    assert "expected" in str(caught.value) or caught.value.code in ("RC602", "TC105")


def test_a_value_that_makes_no_program_is_told_with_its_fault():
    """It was a division by zero in the program's line, whoever named the 0."""
    with pytest.raises(TileError, match="divisor other than 0") as found:
        ask(programs.matmul, space={"block_M": (0, -5)}, **GEMM_SIZES)
    assert "that is with block_M=0: name other values" in str(found.value)


@pytest.mark.parametrize("device", ["host", "h100"])
@pytest.mark.parametrize("empty", [{"M": 0}, {"K": 0}, {"M": 0, "N": 0}])
@pytest.mark.filterwarnings("error")
def test_a_tensor_without_elements_is_refused_by_its_size(device, empty):
    """Once "the compiler refuses all that were tried", after a warning of NumPy's."""
    with pytest.raises(InvalidProblem, match="expected a size of at least 1, found 0") as caught:
        ask(programs.matmul, device, **{**GEMM_SIZES, **empty})
    field = next(iter(empty)) if len(empty) == 1 else "axis 0 of A"
    assert caught.value.fields["field"] == field


def test_configs_the_compiler_refuses_are_left_out():
    question = question_of(programs.matmul, (), GEMM_SIZES, target=None, top_k=3)

    def refuses(func, knobs):
        rows = func.body.stmts[0] if hasattr(func.body, "stmts") else func.body
        if int(rows.threads[0].value) != 256:
            raise TypeMismatch(expected="256 threads", found="others")

    found = advise(question, DEVICES["h100"], refuses)
    assert {r.config["threads"] for r in found} == {256}
    assert "left out" in found.notes[0]
    with pytest.raises(EmptySpace, match="TC202"):
        advise(replace(question, space={"threads": (128,)}), DEVICES["h100"], refuses)


@pytest.mark.few(1)
@pytest.mark.parametrize("device", ["host", "h100"])
def test_a_length_that_is_data_is_taken_to_be_what_the_tensors_hold(device):
    sizes = {"M": 512, "N": 640, "K": 768}
    data, fixed = (
        ask(programs.sequence, device, **sizes, is_data=is_data) for is_data in (True, False)
    )
    assert shown(data.configs) == shown(fixed.configs)
    assert not fixed.notes
    assert any("the loop over ko" in note and "user_programs.py:" in note for note in data.notes)


@pytest.mark.few(1)
@pytest.mark.covering("device")
@pytest.mark.parametrize("device", ["h100", "a100", "mi300x"])
@pytest.mark.parametrize("sizes", [(16, 16, 64), (8, 8, 8), (24, 16, 33), (1, 1, 128)])
def test_products_smaller_than_an_instruction_have_a_config(device, sizes):
    """Where no config is worth trying, one that can run is recommended."""
    found = ask(programs.matmul, device, **dict(zip("MNK", sizes, strict=True)))
    assert found[0].config["block_M"] >= 16


def test_an_answer_is_a_line_in_a_console():
    found = ask(programs.matmul, M=64, N=64, K=64, top_k=2)
    assert repr(found).startswith("ProgramAdvice(2 configs for NVIDIA H100 80GB HBM3; the first ")
    assert len(repr(found)) < 200


@pytest.mark.parametrize("top_k", [0, -1, 51])
def test_no_answer_has_so_many_configs(top_k):
    with pytest.raises(TypeMismatch, match="top_k from 1 to 50"):
        ask(programs.matmul, M=64, N=64, K=64, top_k=top_k)
