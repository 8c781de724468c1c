"""Beside a confirmed config only what is around it is looked at, unless that is hardly enough."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from recommender import recommend as module
from recommender.around import around
from recommender.measurement import Protocol
from recommender.open_shapes import program_digest
from recommender.predict import forecast
from recommender.recommend import recommend
from recommender.space import SearchSpace
from tests.recommender.support import (
    GEMM,
    HOST,
    PROGRAM,
    TOOLCHAIN,
    MemoryStore,
    measured,
    space_of,
    workload,
)
from tilecore import kernels
from tilecore.errors import TileError

SHAPE = workload(700, 1000, 500)
SIZES = (1, 8, 37, 64, 96, 128, 200, 256, 1000)


def ask(store, w=SHAPE, **kw):
    return recommend(
        w, GEMM, HOST, store, program_digest=PROGRAM, toolchain_key=TOOLCHAIN.key,
        **{"top_k": 5, **kw},
    )  # fmt: skip


def confirmed(config, w=SHAPE):
    return measured(w, config, 1e-3, protocol=Protocol.CONFIRM)


def others(found):
    return [r for r in found if r.source != "measured"]


def steps(a, b, values):
    """How many knobs differ by a step; None: one differs by more."""
    count = 0
    for knob, options in values.items():
        if a[knob] != b[knob]:
            apart = abs(options.index(a[knob]) - options.index(b[knob]))
            if not isinstance(options[0], str) and apart > 1:
                return None
            count += 1
    return count


def test_what_is_around_is_what_the_space_has_within_two_steps():
    space = space_of(SHAPE)
    seeds = [space.config(77), space.config(len(space) // 2)]
    found = around(space, seeds)
    assert (np.diff(found.codes) > 0).all()
    wanted = [
        code
        for row, code in enumerate(space.codes.tolist())
        if any((steps(space.config(row), s, space.values) or 0) <= 2
               and steps(space.config(row), s, space.values) is not None for s in seeds)
    ]  # fmt: skip
    assert found.codes.tolist() == wanted
    for position in (0, len(found) - 1):
        config = space.config_of(int(found.codes[position]))
        assert {k: c[position] for k, c in found.columns.items()} == dict(config)


def test_a_config_that_is_none_of_the_space_has_the_nearest_values():
    space = space_of(SHAPE)
    inside = space.config(77)
    block = inside["block_M"]
    assert isinstance(block, int)
    odd = inside.replace(block_M=block + 1)
    assert around(space, [odd]).codes.tolist() == around(space, [inside]).codes.tolist()


def test_a_confirmed_config_takes_no_ranking_of_the_space():
    w = workload(701, 999, 501)
    best = forecast(space_of(w), HOST.cores, None).config(0)
    outline = SearchSpace.outline(GEMM, dict(w.problem), HOST)
    vars(outline).pop("_candidates", None)
    found = ask(MemoryStore([confirmed(best, w)]), w)
    assert "_candidates" not in vars(outline)
    assert (found[0].source, found[0].config) == ("measured", best)
    assert len(found) == 5
    assert all("around what was measured" in r.rationale for r in others(found))
    assert found == ask(MemoryStore([confirmed(best, w)]), w)
    screened = MemoryStore([measured(w, best, 1e-3)])
    assert all("around" not in r.rationale for r in ask(screened, w))
    old = replace(confirmed(best, w), driver="another")
    doubted = recommend(
        w, GEMM, replace(HOST, driver="this one"), MemoryStore([old]), program_digest=PROGRAM,
        toolchain_key=TOOLCHAIN.key,
    )  # fmt: skip
    assert all("around" not in r.rationale for r in doubted)


@pytest.mark.covering
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rank", [0, 5, 40, None])
def test_the_rest_of_the_list_is_about_as_good_as_with_the_whole_space(seed, rank, monkeypatch):
    rng = np.random.default_rng([seed, rank or 0])
    w = workload(*(int(2 ** rng.uniform(4, 11.5)) for _ in range(3)))
    space = space_of(w)
    expected = forecast(space, HOST.cores, None)
    row = int(rng.integers(len(space)))
    config = space.config(row) if rank is None else expected.config(rank)
    store = MemoryStore([confirmed(config, w)])
    near = ask(store, w)
    monkeypatch.setattr(module, "FAR", 0.0)
    whole = ask(store, w)
    assert near[0] == whole[0]
    fastest = [min(r.time_s for r in others(found)) for found in (near, whole)]
    assert fastest[0] <= 1.3 * fastest[1]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["gemm", "softmax", "batched_gemm", "attention", "dequant_gemm"])
def test_a_programs_version_is_the_same_from_one_trace_for_all_sizes(name):
    rng = np.random.default_rng(5)
    definition, count = kernels.get(name), 0
    while count < 8:
        sizes = {f.name: int(rng.choice(SIZES)) for f in definition.fields if f.kind == "dimension"}
        try:
            problem = definition.parse_problem(sizes)
            direct = definition.program_digest(problem)
        except (TileError, ValueError, AssertionError):  # sizes that the kernel refuses
            sizes = {}
        if sizes:
            assert program_digest(definition, problem) == direct
        count += 1


def test_gpu_programs_have_versions_of_their_own():
    on_gpu = GEMM.on("cuda")
    problem = GEMM.parse_problem({"m": 100, "n": 64, "k": 64, "dtype": "float16"})
    assert program_digest(on_gpu, problem) == on_gpu.program_digest(problem)
