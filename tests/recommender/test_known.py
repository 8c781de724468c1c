"""Recommendations for programs of users by what was measured: of them, and of gemm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from recommender.hardware import load_profile
from recommender.measurement import Measurement, Protocol
from recommender.open_programs import advise
from recommender.portable_tracing import portable
from recommender.programs import version
from recommender.recommend import recommend
from recommender.remembered import Known
from recommender.workload import Workload, kernel_name
from tests.recommender import user_programs as programs
from tests.recommender.support import GEMM, HOST, TOOLCHAIN, MemoryStore, measured, workload
from tilecore.advice import question_of
from tilecore.compiler import check
from tilecore.logged import static_problem_of
from tilecore.recommending import LOWERING, OpenProgram, ProgramAdvice
from tilecore.tile_config import TileConfig

SIZES = {"M": 512, "N": 1024, "K": 768, "dtype": "float32"}
TILES = {"block_M": 96, "block_N": 64, "block_K": 128, "num_stages": 3, "threads": 128}
GEMM_TILES = TileConfig.of(
    block_M=48, block_N=192, block_K=384, num_stages=1, threads=128, micro_m=4, micro_n=3,
    pack_a="rows", pack_b="grid",
)  # fmt: skip


@pytest.fixture(autouse=True)
def without_what_ships(monkeypatch):
    """What ships with the package is the business of test_prior.py and test_shipped.py."""
    monkeypatch.setattr("recommender.predict.prior", lambda kernel, hardware: None)
    monkeypatch.setattr("recommender.recommend.winners", lambda kernel, hardware: None)


def question(program=programs.matmul, top_k=4, space=None, **given) -> OpenProgram:
    return question_of(program, (), {**SIZES, **given}, target=None, top_k=top_k, space=space)


def ask(asked: OpenProgram, found: Sequence[Measurement] = ()) -> ProgramAdvice:
    known = Known(MemoryStore(found), TOOLCHAIN.key, GEMM)
    return advise(asked, HOST, lambda func, knobs: check(func, "avx512", knobs), known)


def of_program(
    asked: OpenProgram, tiles: dict[str, int], time_s: float, *, digest: str = "", **fields
) -> Measurement:
    """Return a measurement as the autotuner files it."""
    knobs = {k: v for k, v in tiles.items() if k not in LOWERING}
    func = asked.trace(knobs)
    problem = static_problem_of(func.params[:2])
    assert problem is not None
    lowering = {k: v for k, v in tiles.items() if k in LOWERING}
    own = digest or version(func, "", lowering)
    return measured(
        Workload.of(asked.logged, problem), TileConfig.of(tiles), time_s, program=own,
        protocol=fields.pop("protocol", Protocol.CONFIRM), **fields,
    )  # fmt: skip


def of_gemm(time_s: float, **problem) -> Measurement:
    w = workload(512, 1024, 768, **problem)
    return measured(
        w, GEMM_TILES, time_s, program=GEMM.program_digest(dict(w.problem)),
        protocol=Protocol.CONFIRM,
    )  # fmt: skip


# --- of the program itself ----------------------------------------------------------------------


def test_what_was_measured_of_exactly_this_program_answers_first() -> None:
    asked = question()
    slow = of_program(asked, {**TILES, "block_M": 32}, 9e-3)
    first, *rest = ask(asked, [slow, of_program(asked, TILES, 2e-3)])
    assert (dict(first.config), dict(first.lowering)) == (TILES, {})
    assert (first.source, first.time_s) == ("measured", pytest.approx(2e-3))
    assert "best measured for exactly this workload" in first.rationale
    assert {r.source for r in rest} == {"analytic"}
    assert len(rest) == 3


def test_a_measured_lowering_comes_with_its_config() -> None:
    asked = question()
    first = ask(asked, [of_program(asked, {**TILES, "micro_m": 6}, 2e-3)])[0]
    assert (dict(first.config), dict(first.lowering)) == (TILES, {"micro_m": 6})


def test_one_thread_is_scaled_to_all() -> None:
    asked = question()
    first = ask(asked, [of_program(asked, TILES, 2e-3, protocol=Protocol.SCREEN)])[0]
    assert first.source == "measured"
    assert 0.9e-3 < first.time_s < 1.2e-3
    assert "one thread, scaled to 2" in first.rationale


def test_an_interval_is_of_80_percent_of_the_repeats() -> None:
    """It was from the fastest to the slowest one: one repeat beside a neighbour made it wide."""
    asked = question()
    found = of_program(asked, TILES, 2e-3)
    found = replace(found, times_s=(1e-4, *[2e-3 + i * 1e-6 for i in range(20)], 1.0))
    low_s, high_s = ask(asked, [found])[0].interval_s
    assert (low_s, high_s) == (pytest.approx(2.001e-3, rel=1e-3), pytest.approx(2.018e-3, rel=1e-3))


@pytest.mark.few(1)
@pytest.mark.parametrize("changed", ["digest", "toolchain", "name", "fixed", "space"])
def test_what_is_of_something_else_does_not_answer(changed) -> None:
    asked = question()
    other = of_program(asked, TILES, 2e-3)
    if changed == "digest":
        other = of_program(asked, TILES, 2e-3, digest="q" * 32)
    elif changed == "toolchain":
        other = replace(other, toolchain=replace(TOOLCHAIN, tilecore="older"))
    elif changed == "name":
        named = Workload.of("another:matmul", dict(other.workload.problem))
        other = replace(other, workload=named)
    elif changed == "fixed":
        asked = question(block_K=64)
    else:
        asked = question(space={"block_M": (64, 128)})
    found = ask(asked, [other])
    assert {r.source for r in found} == {"analytic"}


def test_winners_of_near_sizes_come_before_the_model_and_far_ones_behind() -> None:
    asked = question()
    near, far = question(M=640), question(M=16384)
    tiles = {**TILES, "block_N": 32, "block_K": 64}
    found = ask(asked, [of_program(near, TILES, 2e-3), of_program(far, tiles, 30e-3)])
    sources, configs = [r.source for r in found], [dict(r.config) for r in found]
    assert sources[:2] == ["nearest", "analytic"]
    assert (configs[0], "(distance 0.32)" in found[0].rationale) == (TILES, True)
    assert sources[configs.index(tiles)] == "nearest"


def test_what_a_run_measured_of_the_program_as_data_answers_too() -> None:
    """`tilecore tune program.py:function` files under the digest: `recommend` looked elsewhere."""
    asked = question()
    program = portable(asked, HOST)
    own = kernel_name(program.digest)

    def told(tiles, time_s, protocol=Protocol.CONFIRM, kernel=own, **sizes) -> Measurement:
        at = Workload.of(kernel, {**{k: SIZES[k] for k in "MNK"}, **sizes})
        return measured(at, TileConfig.of(tiles), time_s, protocol=protocol)

    here = {**TILES, "block_M": 64, "block_N": 32}
    near = {**TILES, "block_M": 32, "block_K": 64}
    by_run = [
        told(here, 1e-3),
        told(near, 1e-3, M=640),
        told(near, 9e-4, kernel=kernel_name("0" * 32)),
    ]
    by_autotune = of_program(asked, TILES, 2e-3)
    known = Known(MemoryStore([*by_run, by_autotune]), TOOLCHAIN.key, GEMM, lambda n: n == "matmul")
    found = advise(asked, HOST, lambda func, knobs: check(func, "avx512", knobs), known)
    assert [r.source for r in found[:3]] == ["measured", "measured", "nearest"]
    assert [dict(r.config) for r in found[:3]] == [here, TILES, near]
    assert ask(asked, by_run)[0].source == "analytic"  # nobody sent a program of that name


# --- of the library's gemm ----------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("program", [programs.matmul, programs.branching])
def test_gemm_that_was_measured_tells_its_tiles_to_a_product_of_a_user(program) -> None:
    is_plain = program is programs.matmul
    sizes = SIZES if is_plain else {k: SIZES[k] for k in "MNK"}
    asked = question_of(program, (), sizes, target=None, top_k=4)
    tiles = GEMM_TILES if is_plain else GEMM_TILES.replace(block_M=64, block_K=128)
    found = of_gemm(1.5e-3, dtype="float32" if is_plain else "float16")
    first, *rest = ask(asked, [replace(found, config=tiles)])
    own = {k: first.config[k] for k in ("block_M", "block_N", "block_K")}
    assert own == {k: tiles[k] for k in own}
    assert dict(first.lowering) == {k: tiles[k] for k in LOWERING}
    assert (first.source, first.time_s) == ("measured", pytest.approx(1.5e-3, rel=0.02))
    assert "as gemm of 512x1024x768" in first.rationale
    assert all(r.source == "analytic" for r in rest)


def test_on_a_gpu_stages_and_threads_are_gemms_too() -> None:
    hardware = load_profile("h100")
    tiles = TileConfig.of(block_M=128, block_N=192, block_K=32, num_stages=4, threads=384)
    asked = question_of(programs.matmul, (), {**SIZES, "dtype": "float16"}, target="h100", top_k=4)
    w = workload(512, 1024, 768, dtype="float16", out_dtype="float16")
    digest = GEMM.on("cuda").program_digest(dict(w.problem))
    found = measured(w, tiles, 9e-6, hardware=hardware, program=digest, protocol=Protocol.CONFIRM)
    known = Known(MemoryStore([found]), TOOLCHAIN.key, GEMM)
    target = hardware.target
    first = advise(asked, hardware, lambda func, knobs: check(func, target, knobs), known)[0]
    assert (dict(first.config), dict(first.lowering)) == (dict(tiles), {})
    assert (first.source, first.time_s) == ("measured", pytest.approx(9e-6, rel=0.02))


def test_measurements_of_the_program_go_before_those_of_gemm() -> None:
    asked = question()
    found = ask(asked, [of_gemm(1.5e-3), of_program(asked, TILES, 2e-3)])
    assert [r.source for r in found[:2]] == ["measured", "measured"]
    assert dict(found[0].config) == TILES
    assert found[1].config["block_N"] == GEMM_TILES["block_N"]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("program", "given"),
    [
        (programs.matmul, {"block_M": 64}),  # settled otherwise
        (programs.matmul, {"dtype": "float16"}),  # a lookup among other element types is far
        (programs.attention, {"B": 1, "H": 2, "S": 512, "D": 64}),
    ],
)
def test_gemm_says_nothing_of_other_programs(program, given) -> None:
    sizes = {} if program is programs.attention else SIZES
    asked = question_of(program, (), {**sizes, **given}, target=None, top_k=4)
    first = ask(asked, [of_gemm(1.5e-3)])[0]
    assert first.source == "analytic"


def test_a_settled_block_that_gemm_has_too_is_no_obstacle() -> None:
    first = ask(question(block_M=48), [of_gemm(1.5e-3)])[0]
    assert first.source == "measured"
    assert "block_M" not in first.config
    assert first.config["block_N"] == 192


def test_gemm_is_asked_as_the_library_is() -> None:
    """The answer for the program is the library's, in the program's words."""
    store = MemoryStore([of_gemm(1.5e-3)])
    w = workload(512, 1024, 768)
    library = recommend(
        w, GEMM, HOST, store, top_k=1, toolchain_key=TOOLCHAIN.key,
        program_digest=GEMM.program_digest(dict(w.problem)),
    )[0]  # fmt: skip
    own = ask(question(), [of_gemm(1.5e-3)])[0]
    assert own.config["block_M"] == library.config["block_M"]
    assert own.time_s == pytest.approx(library.time_s, rel=0.02)
