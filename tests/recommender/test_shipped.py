"""Winners that ship with the package: when they answer, what they are worth, damage."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np

from recommender import shipped as module
from recommender.hardware import load_profile
from recommender.measurement import Protocol
from recommender.recommend import recommend
from recommender.shipped import KEPT, RecordedShape, Winners, candidates, order, winners
from recommender.training import make_groups
from recommender.workload import Workload
from tests.recommender.support import MemoryStore, measured
from tests.recommender.test_prior import recorded
from tilecore import kernels

HOST = replace(load_profile("x86-64-avx512"), cores=2)
SOFTMAX, ATTENTION = kernels.get("softmax"), kernels.get("attention")
HEADS = {"batch": 1, "heads": 1, "kv_heads": 1, "seq_q": 768, "seq_kv": 768, "dim": 64}
LONGER = {**HEADS, "seq_kv": 1536}


def asked(definition, **problem):
    return Workload.of(definition.name, definition.parse_problem(problem))


def ask(definition, problem, hardware=HOST, store=None, **kw):
    w = asked(definition, **problem)
    return recommend(w, definition, hardware, store or MemoryStore(), **{"top_k": 5, **kw})


def without(group, others, rule):
    """Return the part of the best speed that winners of other shapes reach."""
    shapes = []
    for g in others:
        rows = np.argsort(g.time_s)[:KEPT]
        shapes.append(
            RecordedShape(g.workload, tuple(g.configs[i] for i in rows), tuple(g.time_s[rows]))
        )
    device = group.hardware
    known = Winners(rule, device.name, frozenset(device.features), tuple(shapes))
    wanted = [c for c, _ in candidates(known.near(group.workload, device), rule)]
    rows = [group.configs.index(c) for c in wanted]  # the whole space was recorded
    return group.time_s.min() / group.time_s[rows[order(rule, group.analytic_s[rows])[0]]]


def test_a_machine_that_measured_nothing_is_told_what_was_fast_elsewhere():
    found = ask(ATTENTION, HEADS)
    first = found[0]
    assert first.source == "shipped"
    assert first.distance > 1.0
    assert first.confidence < 0.8 * 0.9 / (1.0 + first.distance) + 1e-9
    assert "ships with tilecore" in first.rationale
    assert first.bound_by in first.rationale
    assert "analytic" in {r.source for r in found}
    assert len({r.config for r in found}) == len(found)
    assert found == ask(ATTENTION, HEADS)
    for other, ships in {"avx2": True, "h100-sxm": False}.items():  # what was recorded and helps
        sources = {r.source for r in ask(ATTENTION, HEADS, load_profile(other))}
        assert ("shipped" in sources) == ships


def test_where_the_analytic_model_does_as_well_nothing_ships():
    assert winners("softmax", HOST) is None
    assert ask(SOFTMAX, {"m": 1024, "n": 1000})[0].source == "analytic"


def test_what_was_measured_here_goes_before_it():
    near = asked(ATTENTION, **LONGER)
    config = ask(ATTENTION, LONGER)[-1].config
    store = MemoryStore([replace(measured(near, config, 1e-3), hardware=HOST)])
    found = ask(ATTENTION, HEADS, store=store, toolchain_key=store.all[0].toolchain.key)
    assert (found[0].source, found[0].config) == ("nearest", config)
    assert "shipped" not in {r.source for r in found}
    own = replace(measured(near, config, 1e-3, protocol=Protocol.CONFIRM), hardware=HOST)
    exact = ask(
        ATTENTION, LONGER, store=MemoryStore([own]),
        program_digest=own.program_digest, toolchain_key=own.toolchain.key,
    )  # fmt: skip
    assert exact[0].source == "measured"
    assert "shipped" not in {r.source for r in exact}


def test_far_shapes_do_not_lead():
    found = ask(ATTENTION, {**HEADS, "batch": 64, "heads": 64, "kv_heads": 64})
    assert found[0].source == "analytic"
    assert "shipped" in {r.source for r in found}


def test_narrow_types_need_the_instructions_they_were_recorded_with():
    plain = replace(HOST, features=())
    recorded_on = replace(HOST, features=tuple(winners("attention", HOST).features))
    narrow, wide = ({**HEADS, "dtype": d} for d in ("bfloat16", "float32"))
    assert ask(ATTENTION, narrow, recorded_on)[0].source == "shipped"
    assert "shipped" not in {r.source for r in ask(ATTENTION, narrow, plain)}
    assert ask(ATTENTION, wide, plain)[0].source == "shipped"


def test_winners_of_one_thread_that_leave_many_cores_idle_are_left_out():
    small = {**HEADS, "seq_q": 512, "seq_kv": 512}
    many = replace(HOST, cores=64)
    few = [r.config["block_M"] for r in ask(ATTENTION, small) if r.source == "shipped"]
    found = [r.config["block_M"] for r in ask(ATTENTION, small, many) if r.source == "shipped"]
    assert max(few) > max(found, default=0)


def test_what_ships_are_the_best_recorded_configs():
    groups = {g.workload: g for g in make_groups(recorded("attention_*"), ATTENTION)}
    shapes = winners("attention", HOST).shapes
    assert {s.workload for s in shapes} == set(groups)
    for shape in shapes:
        group = groups[shape.workload]
        rows = np.argsort(group.time_s, kind="stable")[:KEPT]
        assert shape.configs == tuple(group.configs[i] for i in rows)
        np.testing.assert_allclose(shape.times_s, group.time_s[rows], rtol=1e-3)


def test_shapes_left_out_are_answered_better_than_by_the_analytic_model():
    groups = list(make_groups(recorded("attention_float32_*"), ATTENTION))
    rule = winners("attention", HOST).rule
    reached = [without(g, [o for o in groups if o is not g], rule) for g in groups]
    alone = [g.time_s.min() / g.time_s[np.argmin(g.analytic_s)] for g in groups]
    assert np.mean(reached) > np.mean(alone) + 0.02
    assert np.mean(reached) > 0.95


def test_a_damaged_file_is_as_none(tmp_path, monkeypatch):
    good = (module.FOLDER / module.file_name(HOST.arch)).read_bytes()
    document = json.loads(gzip.decompress(good))
    other = gzip.compress(json.dumps({**document, "format": 99}).encode())
    rule = gzip.compress(gzip.decompress(good).replace(b'"agreed"', b'"guessed"'))
    damaged = (good[: len(good) // 2], b"{}", gzip.compress(b"[1]"), other, rule)
    for number, content in enumerate(damaged):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / module.file_name(HOST.arch)).write_bytes(content)
        monkeypatch.setattr(module, "FOLDER", folder)
        assert winners("attention", HOST) is None
        assert ask(ATTENTION, HEADS)[0].source == "analytic"
