"""A migrated store, settings that point at it, and runs on the table CPU."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from db.migrate import open_database
from db.records import NewRun, RunRecord
from db.store import SqlStore
from recommender.prior import prior
from recommender.workload import Workload
from tests import postgres
from tests.tuner_service.serving import TestClient
from tests.tuner_service.table_measurer import HARDWARE, TOOLCHAIN
from tilecore import kernels
from tilecore.tile_config import digest
from tuner_service.app import create_app
from tuner_service.log_lines import configure_logging
from tuner_service.settings import Settings
from tuner_service.wiring import detected_host


@pytest.fixture(scope="session")
def unmeasured_source() -> str:
    """Where answers of GEMM on this machine come from while nothing is measured."""
    return "analytic" if prior("gemm", detected_host()) is None else "prior"


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "tilecore.db"
    open_database(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def settings(migrated_file: Path, tmp_path: Path) -> Settings:
    shutil.copy(migrated_file, tmp_path / "tilecore.db")
    return Settings(data_dir=tmp_path, database_timeout_s=5.0, executor="local")


@pytest.fixture(params=["sqlite", "postgresql"])
def each_database(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Settings]:
    """Settings with SQLite, then with PostgreSQL."""
    if request.param == "sqlite":
        yield settings
        return
    template = request.getfixturevalue("postgres_template")
    if template is None:
        pytest.skip("no PostgreSQL here: install it, or set TILECORE_TEST_POSTGRES_URL")
    with postgres.database(*template) as url:
        yield settings.model_copy(update={"database_url": url})


@pytest.fixture
def store(settings: Settings) -> Iterator[SqlStore]:
    store = SqlStore(open_database(settings.url, busy_timeout_s=5.0))
    yield store
    store.database.close()


@pytest.fixture
def client(settings: Settings, store: SqlStore) -> Iterator[TestClient]:
    """A client of the service, who is answered also what fails in it."""
    with TestClient(create_app(settings, store), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(autouse=True, scope="session")
def plain_logs() -> None:
    configure_logging("error")  # the default renders the locals of every frame


def gemm(m: int = 64, n: int = 64, k: int = 64) -> Workload:
    problem = kernels.get("gemm").parse_problem({"m": m, "n": n, "k": k})
    return Workload.of("gemm", problem)


@pytest.fixture
def queue_run(store: SqlStore) -> Callable[..., RunRecord]:
    def queue(
        workload: Workload | None = None, max_trials: int = 6, **changes: object
    ) -> RunRecord:
        workload = workload or gemm()
        spec = {"max_trials": max_trials, "time_limit_s": 60.0}
        fields: dict[str, object] = {
            "workload": workload,
            "hardware": HARDWARE,
            "program_digest": kernels.get("gemm").program_digest(dict(workload.problem)),
            "toolchain": TOOLCHAIN,
            "spec": spec,
            "body_hash": digest(spec),
            "planned_trials": max_trials,
        }
        return store.runs.create(NewRun(**(fields | changes)))[0]

    return queue


@pytest.fixture
def database_lock(settings: Settings) -> Callable[[], AbstractContextManager[None]]:
    @contextmanager
    def hold() -> Iterator[None]:
        with closing(sqlite3.connect(settings.data_dir / "tilecore.db", isolation_level=None)) as c:
            c.execute("begin exclusive")
            yield
            c.execute("rollback")

    return hold
