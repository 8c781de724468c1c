"""Of a grid `make test` keeps what covers it, and what it leaves out is run elsewhere."""

import itertools
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.grids import cover, spread

ROOT = Path(__file__).parents[2]
GRID = textwrap.dedent(
    """
    import pytest

    @pytest.mark.covering("a b")
    @pytest.mark.parametrize("c", [1, 2, 3, 4])
    @pytest.mark.parametrize(("b", "bound"), [(1, 8), (1, 9), (2, 8)])
    @pytest.mark.parametrize("a", ["x", "y"])
    def test_grid(a, b, bound, c):
        pass

    @pytest.mark.covering
    @pytest.mark.parametrize("b", [0, 1, 2, 3, pytest.param(4, marks=pytest.mark.exhaustive)])
    @pytest.mark.parametrize("a", range(4))
    def test_values(a, b):
        pass

    @pytest.mark.few(2)
    @pytest.mark.parametrize("c", range(7))
    def test_long(c):
        pass

    @pytest.mark.few(3)
    @pytest.mark.covering
    @pytest.mark.parametrize("b", range(5))
    @pytest.mark.parametrize("a", range(3))
    def test_long_grid(a, b):
        pass

    def test_plain():
        pass
    """
)
CONFTEST = "from tests.grids import mark_repetitions\n" + textwrap.dedent(
    """
    import pytest

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(items):
        mark_repetitions(items)
    """
)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_has_every_combination_and_no_case_in_vain(seed):
    rng = random.Random(seed)
    sizes = [rng.randint(1, 5) for _ in range(rng.randint(1, 4))]
    crossed = rng.sample(range(len(sizes)), rng.randint(1, len(sizes)))
    groups = [tuple(crossed), *((i,) for i in range(len(sizes)) if i not in crossed)]
    cases = [
        frozenset((tuple(map(str, g)), tuple(str(case[i]) for i in g)) for g in groups)
        for case in itertools.product(*map(range, sizes))
        if rng.random() < 0.9  # grids have holes
    ]
    kept = cover(cases)
    everything = frozenset().union(*cases)
    assert frozenset().union(*(cases[i] for i in kept)) == everything
    assert len(kept) <= len(everything)
    assert cover(cases) == kept  # every process of a run keeps the same


def collected(folder, *options):
    """Return names and parameters of the tests that pytest chooses."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *options, str(folder)]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-o", "markers=covering\nfew\nexhaustive"],
        capture_output=True, text=True, check=False, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.exhaustive
def test_each_case_is_in_one_of_the_two_parts(tmp_path):
    (tmp_path / "test_one.py").write_text(GRID)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    first, rest = (collected(tmp_path, "-m", m) for m in ("not exhaustive", "exhaustive"))
    assert len(first) + len(rest) == len({*first, *rest}) == len(collected(tmp_path)) == 67
    assert "test_plain" in first
    grid = [name[len("test_grid[") : -1].split("-") for name in first if "test_grid[" in name]
    assert len(grid) == 6  # x, y with each row of b and its bound
    rows = [("1", "8"), ("1", "9"), ("2", "8")]
    assert {tuple(case[:3]) for case in grid} == {(a, *row) for a in "xy" for row in rows}
    assert {case[3] for case in grid} == set("1234")
    values = [name for name in first if "values" in name]
    assert len(values) == 4
    assert {name[len("test_values[") : -1].split("-")[1] for name in values} == set("0123")
    assert [name for name in first if "long[" in name] == ["test_long[0]", "test_long[6]"]
    assert len([name for name in first if "long_grid" in name]) == 3


def test_cases_that_take_long_are_spread():
    assert spread("a", 7, 2) == {0, 6}
    assert spread("a", 7, 3) == {0, 3, 6}
    assert spread("a", 2, 3) == spread("a", 2, 2) == {0, 1}
    names = [f"test_{number}" for number in range(100)]
    assert {len(spread(name, 5, 1)) for name in names} == {1}
    assert set().union(*(spread(name, 5, 1) for name in names)) == set(range(5))


def test_an_unknown_parameter_is_told(tmp_path):
    (tmp_path / "test_one.py").write_text(GRID.replace('covering("a b")', 'covering("a z")'))
    (tmp_path / "conftest.py").write_text(CONFTEST)
    with pytest.raises(AssertionError, match=r"covering names \['z'\], found \['a', 'b', "):
        collected(tmp_path)
