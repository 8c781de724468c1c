"""Recorded spaces in the formats people have, and what they tell of other devices."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from recommender.errors import InvalidRecording
from recommender.recorded import RecordedSpace

RECORDED = Path(__file__).parent / "recorded" / "convolution_milo__A100.csv.gz"
ROWS = [("16", "1", 4.0), ("32", "1", 2.0), ("32", "2", None), ("64", "2", 8.0)]


def csv_text():
    lines = ["bx,by,status,time_ms,GFLOP/s,t1"]
    for bx, by, time in ROWS:
        lines.append(f"{bx},{by},{'ok' if time else 'RuntimeFailedConfig'},{time or ''},1,2")
    return "\n".join(lines) + "\n"


def kernel_tuner_text():
    cache = {
        f"{bx},{by}": {"bx": int(bx), "by": int(by), "time": time or "RuntimeFailedConfig"}
        for bx, by, time in ROWS
    }
    return json.dumps({"tune_params_keys": ["bx", "by"], "cache": cache})


def t4_text():
    results = [
        {
            "configuration": {"bx": int(bx), "by": int(by)},
            "times": {"runtimes": [time - 1, time + 1] if time else []},
            "invalidity": "correct" if time else "runtime",
        }
        for bx, by, time in ROWS
    ]
    return json.dumps({"results": results})


@pytest.mark.parametrize("make", [csv_text, kernel_tuner_text, t4_text])
@pytest.mark.parametrize("is_packed", [False, True])
def test_one_space_in_three_formats(tmp_path, make, is_packed):
    path = tmp_path / ("k__d.dat.gz" if is_packed else "k__d.dat")
    data = make().encode()
    path.write_bytes(gzip.compress(data) if is_packed else data)
    space = RecordedSpace.load(path)
    assert space.knobs == ("bx", "by")
    assert space.configs == (("16", "1"), ("32", "1"), ("32", "2"), ("64", "2"))
    np.testing.assert_allclose(space.time_s, [4e-3, 2e-3, np.nan, 8e-3])
    np.testing.assert_allclose(space.speed, [0.5, 1.0, 0.0, 0.25])


@pytest.mark.parametrize("text", [
    "bx,by,status,time_ms\n16,1,OK,4\n32,1,Correct,2\n", "bx,by,time_ms\n16,1,4\n32,1,2\n",
    "\ufeffbx,by,status,time_ms\r\n16,1,ok,4\r\n\r\n32,1,,2\r\n",
])  # fmt: skip
def test_csv_as_people_write_it(tmp_path, text):
    """`OK` counted as a failure, a file of knobs and times was refused."""
    path = tmp_path / "space.csv"
    path.write_text(text, encoding="utf-8")
    space = RecordedSpace.load(path)
    assert space.knobs == ("bx", "by")
    np.testing.assert_allclose(space.time_s, [4e-3, 2e-3])


def test_a_killed_run_of_kernel_tuner_is_read(tmp_path):
    path = tmp_path / "cache.json"
    path.write_text(kernel_tuner_text()[:-2] + ",\n")
    assert len(RecordedSpace.load(path)) == 4


@pytest.mark.parametrize(("text", "reason"), [
    ("", "expected columns"), ("a,b\n1,2\n", "expected columns"),
    ("bx,status,time_ms\n", "no configuration"),
    ("bx,by,time_ms\n1,2,3\n4\n", "line 3: expected 3 values"),  # once a TypeError, later
    ("bx,by,time_ms\n1,2,3,4\n", "line 2: expected 3 values"),
    ("bx,status,time_ms\n1,RuntimeFailedConfig,\n", "every configuration in it failed"),
    ('{"results": [{"configuration": {"a": 1}}]}', "no 'times'"),
    ('{"results": [{"configuration": {"a": 1}, "times": {"runtimes": [1]}},'
     ' {"configuration": {"b": 1}, "times": {"runtimes": [1]}}]}', "2 has other knobs"),
    ('{"cache": 3}', "no 'tune_params_keys'"),
])  # fmt: skip
def test_what_is_no_recording_is_refused(tmp_path, text, reason):
    path = tmp_path / "space.csv"
    path.write_text(text)
    with pytest.raises(InvalidRecording, match=f"RC607 .*{reason}"):
        RecordedSpace.load(path)


def test_times_of_two_protocols_are_not_mixed(tmp_path):
    """The log as T4 has what was screened on one thread, and what was confirmed on all."""

    def result(bx, time, protocol, day):
        return {
            "configuration": {"bx": bx}, "times": {"runtimes": [time]}, "protocol": protocol,
            "timestamp": f"2026-11-{day} 10:00:00+00:00",
        }  # fmt: skip

    confirmed = [result(16, 3.0, "confirm", 12), result(32, 2.0, "confirm", 12)]
    screened = [result(bx, 100.0 + bx, "screen", 11) for bx in (16, 32, 64)]
    again = [result(16, 4.0, "confirm", 13)]
    for results, expected in (
        ([*again, *confirmed, *screened], [116.0, 132.0, 164.0]),
        ([*again, *confirmed, *screened[1:]], [4.0, 2.0]),  # the newest of each
    ):
        path = tmp_path / "own.t4.json"
        path.write_text(json.dumps({"results": results}))
        space = RecordedSpace.load(path)
        times = dict(zip(space.configs, np.round(space.time_s * 1e3, 6).tolist(), strict=True))
        assert [times[(str(bx),)] for bx in (16, 32, 64)[: len(times)]] == expected


def test_damaged_archives_are_refused(tmp_path):
    whole = RECORDED.read_bytes()
    rng = np.random.default_rng(0)
    for number in range(20):
        flipped = bytearray(whole)
        flipped[int(rng.integers(len(whole)))] ^= 1 << int(rng.integers(8))
        path = tmp_path / f"{number}.csv.gz"
        path.write_bytes(flipped if number else whole[: len(whole) // 2])
        try:
            space = RecordedSpace.load(path)
        except InvalidRecording:
            continue
        assert len(space) == 4362  # a byte of the archive's header: a name, a date
