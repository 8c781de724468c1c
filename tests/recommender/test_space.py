from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recommender.analytic import estimate
from recommender.errors import EmptySpace, UnknownCandidate, UnknownHardware
from recommender.hardware import HardwareProfile, load_profile, profile_names
from recommender.space import SearchSpace
from recommender.workload import Workload
from tests.recommender.support import GEMM, HOST, space_of, workload
from tilecore import kernels
from tilecore.errors import InvalidConfig
from tilecore.target import AVX2, AVX512

CUBE = workload(1024, 1024, 1024)


def test_gemm_has_several_thousand_legal_configs() -> None:
    assert 3_000 <= len(space_of(CUBE)) <= 30_000


@settings(deadline=None, max_examples=25)
@given(
    m=st.integers(1, 5000),
    n=st.integers(1, 5000),
    k=st.integers(1, 5000),
    isa=st.sampled_from([AVX512, AVX2]),
    row=st.integers(0, 1 << 20),
)
def test_every_candidate_is_legal_and_found_again(m, n, k, isa, row) -> None:
    hardware = load_profile(isa.isa)
    space = space_of(workload(m, n, k), hardware)
    row %= len(space)
    config = space.config(row)
    assert space.explain(config) == []
    space.check(config)
    assert space.index(config) == row
    assert isa.micro_tile_fits(int(config["micro_m"]), int(config["micro_n"]))
    assert all(type(value) in (int, str) for value in config.values())


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize(
    "problem",
    [
        workload(64, 4096, 4096),
        workload(3, 4096, 512, trans_b=True),
        workload(700, 500, 300, dtype="int8"),
        workload(96, 96, 96, dtype="bfloat16", trans_a=True),
    ],
    ids=str,
)
def test_mask_keeps_exactly_what_explain_accepts(isa: str, problem: Workload) -> None:
    space = space_of(problem, load_profile(isa))
    rng = np.random.default_rng(0)
    for _ in range(300):
        config = {k: v[int(rng.integers(len(v)))] for k, v in space.values.items()}
        assert space.contains(config) == (space.explain(config) == [])


def test_default_config_is_always_legal() -> None:
    for m, n, k in [(1, 1, 1), (64, 4096, 4096), (4096, 64, 4096), (7, 5, 3)]:
        space_of(workload(m, n, k)).check(GEMM.default_config())


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"micro_m": 14, "micro_n": 4}, "32 registers"),
        ({"micro_m": 99}, "from 0 to 30"),
        ({"block_M": 0}, "from 1 to"),
        ({"block_M": "128"}, "an integer"),
        ({"block_M": True}, "an integer"),
        ({"pack_b": "sometimes"}, "auto, block, grid"),
        ({"block_Q": 1}, "one of the knobs block_K"),
        ({"block_M": 8192, "block_N": 8192}, "64 MiB"),
    ],
)
def test_illegal_configs_say_which_limit(knobs: dict, words: str) -> None:
    space = space_of(CUBE)
    config = {**GEMM.default_config(), **knobs}
    assert any(words in line for line in space.explain(config))
    with pytest.raises(InvalidConfig, match=words) as caught:
        space.check(config)
    assert caught.value.code == "TC303"


def test_legal_but_pointless_configs_are_explained_not_refused() -> None:
    space = space_of(workload(16, 512, 512))
    config = GEMM.default_config().replace(block_M=128, pack_b="grid", micro_m=14, micro_n=2)
    space.check(config)
    lines = space.explain(config)
    assert any("block_M <= 16 (m = 16)" in line for line in lines)
    assert any("no two blocks share" in line for line in space.explain({**config, "block_M": 16}))


def test_neighbours_differ_in_one_knob() -> None:
    space = space_of(CUBE)
    config = space.config(len(space) // 2)
    near = space.neighbours(config)
    assert near
    for row in near:
        other = space.config(row)
        assert sum(other[k] != v for k, v in config.items()) == 1


def test_hand_packed_b_is_left_out_where_no_blocks_share_it() -> None:
    space = space_of(workload(64, 4096, 4096))
    shared = space.columns["pack_b"] == "grid"
    assert shared.any()
    assert (space.columns["block_M"][shared] < 64).all()


def test_unknown_candidate_and_unknown_device_kind() -> None:
    space = space_of(CUBE)
    with pytest.raises(UnknownCandidate, match="RC605"):
        space.index(GEMM.default_config())
    other = HardwareProfile(name="some NPU", kind="npu", arch="v1", cores=8)
    with pytest.raises(EmptySpace, match="some NPU"):
        SearchSpace.build(GEMM, dict(CUBE.problem), other)


def test_profiles_load_by_name_and_alias() -> None:
    for name in profile_names():
        profile = load_profile(name)
        assert profile.source
        assert all(load_profile(alias) == profile for alias in (*profile.aliases, profile.name))
    assert load_profile("AVX512").vector_bytes == HOST.vector_bytes
    with pytest.raises(UnknownHardware, match="x86-64-avx2"):
        load_profile("abacus")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("gemm_epilogue", {"m": 64, "n": 128, "k": 64}),
        ("dequant_gemm", {"m": 16, "n": 256, "k": 256}),
        ("grouped_gemm", {"experts": 4, "m": 64, "n": 128, "k": 64}),
        ("conv2d", {"batch": 1, "height": 8, "width": 8, "channels": 16, "filters": 16}),
    ],
)
def test_kernels_with_other_knobs_than_gemm_have_spaces(name, problem) -> None:
    definition = kernels.get(name)
    space = SearchSpace.build(definition, definition.parse_problem(problem), HOST)
    assert len(space) > 1
    assert np.isfinite(estimate(space, threads=1).time_s).all()


def test_few_rows_may_read_b_in_place() -> None:
    few, many = (space_of(workload(m, 512, 512)) for m in (4, 512))
    assert "none" in {few.config(row)["pack_b"] for row in range(len(few))}
    assert "none" not in {many.config(row)["pack_b"] for row in range(len(many))}


@pytest.mark.parametrize(("dtype", "is_widened"), [("bfloat16", True), ("float32", False)])
def test_narrow_elements_are_widened_once_where_no_instruction_takes_them(
    dtype, is_widened
) -> None:
    fields = {"m": 256, "n": 256, "k": 256, "dtype": dtype, "out_dtype": dtype}
    space = SearchSpace.build(GEMM, GEMM.parse_problem(fields), load_profile("avx2"))
    assert ("none" in set(space.columns["pack_a"].tolist())) != is_widened


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.tuples(*[st.integers(1, 3000)] * 3),
    changes=st.lists(
        st.tuples(
            st.sampled_from(["block_M", "micro_m", "pack_a", "pack_b", "no_such_knob"]),
            st.sampled_from([0, 1, 3, 16, 31, 4096, 1 << 20, True, "block", "none", "grid", 2.0]),
        ),
        min_size=1, max_size=5,
    ),
)  # fmt: skip
def test_configs_asked_together_can_run_where_each_alone_passes(sizes, changes) -> None:
    space = space_of(workload(*sizes))
    configs = [GEMM.default_config().replace(**{knob: value}) for knob, value in changes]

    def passes(config) -> bool:
        try:
            space.check(config)
        except InvalidConfig:
            return False
        return True

    together = space.can_run([*configs, GEMM.default_config()])
    assert together == [*map(passes, configs), passes(GEMM.default_config())]
    assert space.can_run([dict(config) for config in configs]) == together[:-1]
    found = list(zip(changes, together, strict=False))
    assert not any(runs for (knob, _), runs in found if knob == "no_such_knob")
    assert not any(runs for (_, value), runs in found if value is True)
