"""A store in a fresh SQLite file, and values to put into it."""

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from db.migrate import open_database
from db.records import NewRun, RunRecord, TrialRecord
from db.store import SqlStore
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus, Protocol, Toolchain
from recommender.workload import Workload
from tests import postgres
from tilecore.tile_config import TileConfig, digest

HARDWARE = HardwareProfile(name="bench CPU", kind="cpu", arch="x86-64-avx2", cores=2)
TOOLCHAIN = Toolchain(tilecore="t1", tvm="0.27", llvm="22")

# Both databases serve by the same code, and keep the same contract.
BOTH = pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)


def workload(m: int = 64, dtype: str = "float32") -> Workload:
    return Workload.of("gemm", {"m": m, "n": 64, "k": 32, "dtype": dtype})


def measurement(time_s: float | None = 1e-3, **changes: object) -> Measurement:
    ok = time_s is not None
    fields: dict[str, object] = {
        "workload": workload(),
        "config": TileConfig.of(block_M=64),
        "hardware": HARDWARE,
        "toolchain": TOOLCHAIN,
        "program_digest": "p1",
        "protocol": Protocol.SCREEN,
        "threads": 1,
        "status": MeasureStatus.OK if ok else MeasureStatus.COMPILE_ERROR,
        "times_s": (time_s, time_s * 1.5, time_s * 0.9) if ok else (),
        "reference_times_s": (2e-3,) if ok else (),
        "detail": "" if ok else "no such register",
        "measured_at": datetime(2026, 11, 20, 12, 0, tzinfo=UTC),
        "metrics": {"load": 0.5},
    }
    return Measurement(**(fields | changes))


def accept(store: SqlStore, trial: TrialRecord, epoch: int, found: Measurement) -> int | None:
    """Store the outcome of one trial; None: its lease is not held any more."""
    return store.trials.accept_all([(trial, found)], epoch)[0]


def run(**changes: object) -> NewRun:
    spec = {"max_trials": 4}
    fields: dict[str, object] = {
        "workload": workload(),
        "hardware": HARDWARE,
        "program_digest": "p1",
        "toolchain": TOOLCHAIN,
        "spec": spec,
        "body_hash": digest(spec),
    }
    return NewRun(**(fields | changes))


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "tilecore.db"
    open_database(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def database_path(migrated_file: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(migrated_file, tmp_path / "tilecore.db"))


@pytest.fixture(scope="session")
def postgres_spare(postgres_template: tuple[str, str] | None) -> Iterator[postgres.Spare]:
    if postgres_template is None:
        pytest.skip("no PostgreSQL here: install it, or set TILECORE_TEST_POSTGRES_URL")
    spare = postgres.Spare(*postgres_template)
    yield spare
    spare.close()


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated, empty database: SQLite, or what the test's parameter names."""
    if getattr(request, "param", "sqlite") == "sqlite":
        yield f"sqlite:///{request.getfixturevalue('database_path')}"
        return
    with request.getfixturevalue("postgres_spare").empty() as url:
        yield url


@pytest.fixture
def store(store_url: str) -> Iterator[SqlStore]:
    store = SqlStore(open_database(store_url, busy_timeout_s=5.0))
    yield store
    store.database.close()


@pytest.fixture
def second_store(store: SqlStore, store_url: str) -> Iterator[SqlStore]:
    second = SqlStore(open_database(store_url, busy_timeout_s=5.0))
    yield second
    second.database.close()


@pytest.fixture
def new_run(store: SqlStore) -> Callable[..., RunRecord]:
    return lambda **changes: store.runs.create(run(**changes))[0]


@pytest.fixture
def make_measurement() -> Callable[..., Measurement]:
    return measurement


@pytest.fixture
def make_workload() -> Callable[..., Workload]:
    return workload
