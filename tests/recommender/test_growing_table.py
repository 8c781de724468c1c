"""What a table leaves out of a program's space: found around what a tuning run knows as fast."""

from __future__ import annotations

import numpy as np
import pytest

from recommender.growing_table import GrowingTable
from recommender.hardware import load_profile
from recommender.measurement import Protocol
from recommender.portable_tracing import portable
from recommender.program_answers import program_session
from recommender.program_table import Rows, look_around, tabulate
from recommender.tuning import Budget
from recommender.workload import Workload, kernel_name
from tests.recommender import user_programs as programs
from tests.recommender.support import TOOLCHAIN, MemoryStore, measured
from tilecore.advice import question_of
from tilecore.compiler import check
from tilecore.portable import parse

H100 = load_profile("h100")
SIZES = {"M": 1000, "N": 1024, "K": 2048}
BY_8 = tuple(range(8, 257, 8))
SPACE = {"block_M": BY_8, "block_N": BY_8, "block_K": BY_8}
FASTEST = {"block_M": 120, "block_N": 136, "block_K": 56}  # values that thinning drops


def sent(program=programs.matmul, space=SPACE, **given):
    asked = question_of(program, (), {**SIZES, **given}, target="h100", space=space)
    return parse(portable(asked, H100).to_bytes())


def table_of(program, **keywords):
    problem = program.parse_problem({k: SIZES[k] for k in program.sizes})
    made = tabulate(program, problem, H100, lambda f, k: check(f, "h100", k), **keywords)
    return problem, made


@pytest.fixture(scope="module")
def thinned():
    """A program, its problem, and its table, whose space is thinned."""
    program = sent()
    return program, *table_of(program)


def time_s(config):
    """A device whose fastest config is none of the thinned space."""
    apart = sum(abs(np.log2(config[knob] / best)) for knob, best in FASTEST.items())
    return 1e-3 * (1.0 + apart + 0.1 * abs(config["num_stages"] - 3) + config["threads"] / 1e4)


def session_of(thinned, look, store=None, trials=64):
    program, problem, table = thinned
    work = Workload.of(kernel_name(program.digest), problem)
    made = program_session(
        work, table, H100, store=store or MemoryStore(), budget=Budget(max_trials=trials), seed=3,
        program_digest=program.digest, toolchain_key=TOOLCHAIN.key, incumbents=(),
        clock=lambda: 0.0, look=look,
    )  # fmt: skip
    return work, made


def looking(thinned, calls=None):
    program, problem, _ = thinned

    def look(centres, also):
        if calls is not None:
            calls.append((tuple(centres), tuple(also)))
        return look_around(program, problem, H100, centres, also)

    return look


def drive(work, session, told=(), until=10**6):
    """Measure what a session asks for; return what was told, in order."""
    told = list(told)
    while not session.done and len(told) < until:
        for proposal in session.ask(1):
            m = measured(work, proposal.config, time_s(proposal.config),
                         protocol=proposal.protocol)  # fmt: skip
            session.tell(proposal, m)
            told.append((proposal, m))
    return told


def test_what_is_around_a_config_is_legal_and_has_values_that_thinning_drops(thinned):
    program, problem, table = thinned
    assert not table.is_whole
    kept = {knob: {c[knob] for c in table.configs} for knob in SPACE}
    assert any(best not in kept[knob] for knob, best in FASTEST.items())
    centre = table.configs[0]
    found = look_around(program, problem, H100, [centre])
    assert centre in found.configs
    for knob in SPACE:
        assert {c[knob] for c in found.configs} - kept[knob]
    for config in found.configs:
        assert sum(config[k] != centre[k] for k in config) <= 2
    # The model says the same of them as it does where all of the space is looked at.
    row = found.configs.index(centre)
    assert found.time_s[row] == pytest.approx(table.predicted_s(centre, 0))
    few = {knob: tuple(sorted({c[knob] for c in found.configs})) for knob in SPACE}
    whole = table_of(sent(space=few))[1]
    times = dict(zip(found.configs, found.time_s, strict=True))
    assert sum(config in times for config in whole.configs) > 20
    for config, expected in zip(whole.configs, whole.time_s, strict=True):
        assert times.get(config, expected) == pytest.approx(expected)


def test_others_are_returned_where_they_are_legal(thinned):
    program, problem, table = thinned
    base = table.configs[0]
    far, none = base.replace(**FASTEST), base.replace(block_M=1 << 20)
    found = look_around(program, problem, H100, [], [far, none])
    assert found.configs == (far,)
    assert look_around(program, problem, H100, [], []).configs == ()


def test_of_variants_only_the_one_that_a_config_is_of_is_looked_at():
    program = sent(programs.branching, {"block_M": (64, 128), "block_N": BY_8, "block_K": (32, 64)})
    problem, table = table_of(program)
    centre = table.configs[0]
    found = look_around(program, problem, H100, [centre])
    assert len(found.configs) > 1
    assert {(c["block_M"], c["block_K"]) for c in found.configs} == {
        (centre["block_M"], centre["block_K"])
    }


def test_rows_stay_what_they_are(thinned):
    table = thinned[2]
    grown = GrowingTable(table, looking(thinned))
    grown.look_around([table.configs[3]], [])
    assert len(grown) > len(table)
    assert [grown.config(r) for r in range(len(table))] == list(table.configs)
    assert [grown.row(grown.config(r)) for r in range(len(grown))] == list(range(len(grown)))
    assert len(grown.landscape) == len(grown.landscape.features) == len(grown)
    row = len(grown) - 1
    assert grown.predicted_s(grown.config(row), 0) == grown.landscape.prior_s[row]
    again = len(grown)
    grown.look_around([table.configs[3]], [])
    assert len(grown) == again


def test_a_whole_table_is_looked_around_never(thinned):
    few = {"block_M": (64, 128), "block_N": (64, 128), "block_K": (32, 64)}
    table = table_of(sent(space=few))[1]
    assert table.is_whole
    calls = []
    GrowingTable(table, looking(thinned, calls)).look_around([table.configs[0]], [])
    assert not calls


def test_a_run_gets_beyond_the_thinned_space(thinned):
    """What was searched were the 1024 most promising configs of the thinned space."""
    work, without = session_of(thinned, None)
    drive(work, without)
    work, session = session_of(thinned, looking(thinned))
    told = drive(work, session)
    best, before = session.result().best, without.result().best
    assert best.config not in thinned[2].configs
    assert best.time_s < 0.95 * before.time_s
    screens = [p.config for p, _ in told if p.protocol is Protocol.SCREEN]
    assert len(screens) == len(set(screens)) == 64
    assert session.result().space_size > len(thinned[2])


@pytest.mark.few(2)
@pytest.mark.parametrize("cut", [10, 40, 66])
def test_restarted_a_run_knows_what_it_found(thinned, cut):
    work, session = session_of(thinned, looking(thinned))
    told = drive(work, session, until=cut)
    open_now = session.ask(1)
    again = session_of(thinned, looking(thinned))[1]
    for proposal, m in told:
        again.tell(proposal, m)
    again.restore(open_now)
    found = [p for p, _ in told] + open_now
    for proposal in open_now:
        m = measured(work, proposal.config, time_s(proposal.config), protocol=proposal.protocol)
        again.tell(proposal, m)
        told.append((proposal, m))
    told = drive(work, again, told)
    keys = [(p.config, p.protocol) for p, _ in told]
    assert len(set(keys)) == len(keys)
    assert again.result().best.config not in thinned[2].configs
    assert len(again.result().by_status) == 1
    confirmed = {p.config for p in found if p.protocol is Protocol.CONFIRM}
    if confirmed:  # the finalists are those that the first session chose
        assert {p.config for p, _ in told if p.protocol is Protocol.CONFIRM} == confirmed


def test_what_cannot_be_looked_at_leaves_the_table(thinned):
    calls = []

    def nothing(centres, also):
        calls.append(centres)
        return Rows()

    work, session = session_of(thinned, nothing, trials=24)
    drive(work, session)
    assert len(calls) == 2
    assert session.result().best.config in thinned[2].configs
