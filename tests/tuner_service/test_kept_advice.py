"""What was recommended for a program that is text is kept as long as it holds."""

from __future__ import annotations

import json
import os
from contextlib import closing
from dataclasses import replace

import pytest
import torch

import tilecore
from recommender.hardware import load_profile
from tests.recommender import user_programs as programs
from tests.recommender.support import measured, workload
from tests.tuner_service.test_program_advice import SIZES, installed  # noqa: F401
from tilecore.errors import TileError
from tilecore.jit import disable_cache, enable_cache
from tilecore.tile_config import TileConfig
from tuner_service import advice, kept_advice
from tuner_service.kept_advice import KeptAdvice
from tuner_service.settings import load_settings
from tuner_service.wiring import open_store

TEXT = "all of matmul"


@pytest.fixture
def calls(installed, monkeypatch):  # noqa: F811
    """Questions that were worked out."""
    found, work_out = [], advice.advise_for

    def worked_out(question, *more):
        found.append(question)
        return work_out(question, *more)

    monkeypatch.setattr(advice, "advise_for", worked_out)
    return found


def question(text=TEXT, **given):
    return replace(programs.matmul.question((), {**SIZES, **given}, top_k=2), text=text)


def files():
    folder = load_settings().data_dir / "advice"
    return sorted(folder.iterdir()) if folder.is_dir() else []


def test_an_answer_is_worked_out_once(calls):
    first, again = advice.recommend(question()), advice.recommend(question())
    assert again == first
    assert again.notes == first.notes
    assert [type(c.config) for c in again] == [TileConfig] * 2
    assert len(calls) == len(files()) == 1


@pytest.mark.parametrize("other", [
    {"text": "another"}, {"M": 200}, {"target": "h100"}, {"top_k": 1}, {"cores": 1},
])  # fmt: skip
def test_another_question_has_another_answer(calls, other):
    advice.recommend(question())
    asked = question(other["text"]) if "text" in other else question()
    if "M" in other:
        asked = question(**other)
    elif "text" not in other:
        asked = replace(asked, **other)
    advice.recommend(asked)
    assert len(calls) == len(files()) == 2


def test_programs_that_are_no_text_are_asked_for_anew(calls):
    for _ in range(2):
        advice.recommend(question(text=""))
    assert len(calls) == 2
    assert not files()


def test_what_was_measured_since_makes_it_another_answer(calls):
    advice.recommend(question())
    with closing((store := open_store(load_settings())).database):
        found = measured(workload(64, 64, 64), TileConfig.of(block_M=8), 1e-3)
        store.add(found)
        advice.recommend(question())
        advice.recommend(question())
        assert len(calls) == 2
        profile = load_profile("x86-64-avx2")
        store.save_hardware(replace(profile, name="one that nobody knew"))
    advice.recommend(question())
    assert len(calls) == 3


def test_other_code_answers_anew(calls, monkeypatch):
    advice.recommend(question())
    monkeypatch.setattr(kept_advice, "_code", lambda: "of tomorrow")
    advice.recommend(question())
    assert len(calls) == 2


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"configs": [1]}', '{"configs": []}'])
def test_a_damaged_file_is_replaced(calls, damage):
    first = advice.recommend(question())
    (file,) = files()
    file.write_text(damage)
    assert advice.recommend(question()).configs == first.configs
    assert len(calls) == 2
    json.loads(file.read_text())
    advice.recommend(question())
    assert len(calls) == 2


def test_a_folder_that_takes_nothing_is_no_error(calls):
    (load_settings().data_dir / "advice").write_text("a file")
    assert len(advice.recommend(question())) == 2
    assert len(advice.recommend(question())) == 2
    assert len(calls) == 2


def test_refusals_are_not_kept(calls):
    for _ in range(2):
        with pytest.raises(TileError):
            advice.recommend(replace(question(), top_k=0))
    assert len(calls) == 2
    assert not files()


def test_the_oldest_go_when_there_are_many(calls, monkeypatch):
    monkeypatch.setattr(kept_advice, "MOST", 2)
    monkeypatch.setattr(kept_advice, "LOOKED_AT", "")
    for i, text in enumerate("abcde"):
        advice.recommend(question(text))
        for file in files():
            os.utime(file, (file.stat().st_mtime - 10,) * 2)
        assert len(files()) == min(i + 1, 3)
    advice.recommend(question("e"))
    assert len(calls) == 5


def test_computations_ask_once_for_all_processes(calls):
    x = torch.randn(33, 70)
    compute = lambda: tilecore.compute(lambda x: torch.relu(x @ x.T) * 2)(x)
    assert torch.allclose(compute(), torch.relu(x @ x.T) * 2, atol=1e-4)
    asked = len(calls)
    assert asked >= 1
    assert torch.allclose(compute(), torch.relu(x @ x.T) * 2, atol=1e-4)
    assert len(calls) == asked
    disable_cache()
    try:
        compute()
    finally:
        enable_cache()
    assert len(calls) > asked


def test_an_answer_says_which_device(calls):
    with closing((store := open_store(load_settings())).database):
        names = {
            KeptAdvice(load_settings().data_dir, question(), load_profile(device), store).path
            for device in ("h100", "a100", "x86-64-avx512")
        }
    assert len(names) == 3
