"""Files of dispatch tables: written whole, read strictly, every fault named with its place."""

import copy
import json

import pytest

from tilecore.dispatch_reader import load_table, read_table
from tilecore.dispatch_table import DispatchTable, write_json
from tilecore.errors import InvalidDispatchTable


def served(size, config, **changes):
    return {
        "shape": [size], "weight": 0.5, "config": config, "time_us": 10.5,
        "interval_us": [10.0, 11.0], "best_us": 10.0, "loss": 0.05, "source": "measured",
        "best_source": "measured", **changes,
    }  # fmt: skip


DOCUMENT = {
    "format": "tilecore-dispatch-table", "version": 1, "kernel": "gemm", "program_digest": "",
    "problem": {"n": 64, "k": 64, "transpose_a": False, "dtype": "float32"}, "dims": ["m"],
    "threads": 0, "hardware": "a CPU", "hardware_key": "0" * 32, "target": "llvm",
    "toolchain": {"key": "1" * 32}, "tolerance": 0.05, "created_at": "2026-11-22T12:00:00+00:00",
    "rule": "ranges", "method": "exact", "reason": "fewest",
    "configs": [{"block_M": 16, "pack_a": "none"}, {"block_M": 64, "pack_a": "rows"}],
    "ranges": [{"first": 1, "last": 15, "config": 0}, {"first": 16, "last": 64, "config": 1}],
    "shapes": [served(1, 0), served(64, 1)],
}  # fmt: skip


def changed(path, value):
    """The document with one value changed; None: without it."""
    found = copy.deepcopy(DOCUMENT)
    part = found
    for step in path[:-1]:
        part = part[step]
    if value is None:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return found


def test_a_table_chooses_by_its_ranges_and_knows_its_span():
    table = read_table(DOCUMENT)
    assert [table.choose((m,)) for m in (1, 15, 16, 64, 65, 100000)] == [0, 0, 1, 1, 1, 1]
    assert (table.covers((64,)), table.covers((65,))) == (True, False)
    assert table.shapes[0].loss == pytest.approx(0.05)
    assert table.to_json() == DOCUMENT


FAULTS = [
    (["format"], "tilecore-other", "an object with format"),
    (["version"], 2, "version: expected 1"),
    (["kernel"], None, "a field 'kernel'"),
    (["kernel"], 7, "kernel: expected a text"),
    (["extra"], 1, "fields kernel"),
    (["problem"], {"m": 3}, "no field that is one of `dims`"),
    (["problem"], {"n": 1.5}, "problem.n: expected an integer"),
    (["dims"], [], "dims: expected a list of 1"),
    (["dims"], ["m", "m"], "each dimension once"),
    (["threads"], True, "threads: expected an integer"),
    (["tolerance"], float("inf"), "tolerance: expected a number"),
    (["rule"], "tree", "one of ranges, nearest"),
    (["rule"], "nearest", "no ranges with the rule"),
    (["configs"], [], "configs: expected a list of 1"),
    (["configs", 0], ["block_M"], "configs[0]: expected an object"),
    (["configs", 0, "block_M"], [], "configs[0].block_M"),
    (["ranges"], [], "one range at least"),
    (["ranges", 1, "first"], 17, "ranges[1].first: expected 16, without a gap"),
    (["ranges", 1, "last"], 10, "first <= last"),
    (["ranges", 0, "config"], 2, "ranges[0].config: expected at most 1"),
    (["ranges", 0, "first"], 0, "ranges[0].first: expected an integer from 1"),
    (["shapes"], [], "shapes: expected a list of 1"),
    (["shapes", 0, "shape"], [1, 2], "shapes[0].shape: expected 1 sizes"),
    (["shapes", 1, "shape"], [1], "ascending order"),
    (["shapes", 1, "config"], 9, "shapes[1].config: expected at most 1"),
    (["shapes", 0, "time_us"], 0, "a number above 0"),
    (["shapes", 0, "interval_us"], [2, 1], "ascending order"),
    (["shapes", 0, "interval_us"], [2], "a list of two numbers"),
    (["shapes", 0, "source"], "guessed", "one of measured"),
    (["shapes", 0, "weight"], -1, "a number from 0 up"),
    (["shapes", 0, "best_us"], None, "a field 'best_us'"),
    (["toolchain"], {"key": 1}, "toolchain.key: expected a text"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "said"), FAULTS)
def test_every_fault_is_named_with_its_place(path, value, said):
    with pytest.raises(InvalidDispatchTable) as caught:
        read_table(changed(path, value), "t.json")
    assert caught.value.code == "TC506"
    assert str(caught.value).startswith("TC506 invalid-dispatch-table: t.json")
    assert said in caught.value.message


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"NaN", b"[" * 100_000])
def test_files_that_are_no_table_are_refused(tmp_path, content):
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(InvalidDispatchTable, match="TC506"):
        load_table(path)
    with pytest.raises(InvalidDispatchTable, match="No such file"):
        load_table(tmp_path / "none.json")


def test_every_cut_of_a_file_is_refused(tmp_path):
    path = tmp_path / "t.json"
    read_table(DOCUMENT).write(path)
    whole = path.read_bytes()
    assert load_table(path).to_json() == DOCUMENT
    for length in range(0, len(whole.rstrip()), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidDispatchTable):
            load_table(path)


def test_a_table_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "t.json"
    read_table(DOCUMENT).write(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"bad": float("nan")})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


def test_the_form_of_vllm_has_every_sampled_size():
    table: DispatchTable = read_table(DOCUMENT)
    assert table.as_vllm() == {
        "1": {"block_M": 16, "pack_a": "none"}, "64": {"block_M": 64, "pack_a": "rows"},
    }  # fmt: skip
    two = json.loads(json.dumps(DOCUMENT))
    two |= {"dims": ["m", "q"], "rule": "nearest", "ranges": []}
    two["shapes"] = [served(1, 0, shape=[1, 1]), served(64, 1, shape=[64, 2])]
    with pytest.raises(InvalidDispatchTable, match="one dimension"):
        read_table(two).as_vllm()
