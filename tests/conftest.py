"""Fixtures of all tests."""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.grids import mark_repetitions

# Two files run side by side: threads of OpenBLAS that wait for each other take half of the time of
# NumPy's small products. Read when NumPy is imported, here and in what tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A starved machine is slow at everything: how long an example takes is no finding of a test.
settings.register_profile("tilecore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tilecore")


# Files of long tests start first: with files side by side the last ones run alone. Those that
# mostly wait for processes alternate with those that compute, so that both cores have work.
LONG_FILES = (
    "workers/test_ray_pool.py",
    "tilecore/test_autotuner.py",
    "e2e/test_chaos.py",
    "tilecore/cuda/test_resident_blocks.py",
    "tilecore/cuda/test_tile_programs.py",
    "e2e/test_service.py",
    "tilecore/test_computing.py",
    "workers/test_pool.py",
    "tilecore/test_wide_blocks.py",
    "tuner_service/test_coordinator.py",
    "tilecore/cuda/test_tensor_scaled.py",
    "tuner_service/test_study.py",
    "tilecore/test_compat.py",
    "tuner_service/test_packing.py",
    "tilecore/test_torch_ops.py",
    "tuner_service/test_openapi.py",
    "tilecore/cuda/test_tensor_memory.py",
    "tuner_service/test_models.py",
    "tilecore/cuda/test_statements_in_any_order.py",
    "tilecore/test_computing_sizes.py",
    "tilecore/test_random.py",
    "recommender/test_families.py",
    "tilecore/test_cpu_backend.py",
    "tuner_service/test_dashboard.py",
    "tilecore/test_computing_places.py",
    "tuner_service/test_dispatch_tuning.py",
    "tilecore/cuda/test_overlap.py",
    "db/test_log.py",
    "tilecore/test_threads.py",
    "tuner_service/test_bad_input.py",
    "e2e/test_deployment.py",
    "tilecore/test_dynamic_shapes.py",
    "tuner_service/test_programs.py",
    "tilecore/test_document.py",
    "db/test_runs.py",
    "tilecore/test_computing_in_torch.py",
    "workers/test_emulated_device.py",
    "tilecore/test_dispatcher_operator.py",
    "tuner_service/test_access.py",
    "tilecore/test_thread_pools.py",
    "tuner_service/test_app.py",
    "tilecore/cuda/test_products.py",
    "tuner_service/test_studies.py",
    "tilecore/test_reduce.py",
    "tuner_service/test_run_operations.py",
    "tuner_service/test_gpu_runs.py",
    "tuner_service/test_cli.py",
    "tuner_service/test_answer_desk.py",
    "workers/test_sandbox.py",
    "tuner_service/test_dispatch_sent.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Keep tests, and what they start, away from the database of who runs them."""
    gc.disable()  # until all is collected: imports and cases make much, and hardly any garbage
    folder = tempfile.TemporaryDirectory(prefix="tilecore-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["TILECORE_DATA_DIR"] = folder.name
    if config.getoption("--cpu"):
        from tilecore.target import EMULATED, compiling_for  # NumPy is imported with it

        emulated = compiling_for(EMULATED + config.getoption("--cpu"))
        emulated.__enter__()
        config.add_cleanup(lambda: emulated.__exit__(None, None, None))
    # A service of a test answers by itself; test_answer_desk.py has the processes.
    os.environ["TILECORE_ANSWER_PROCESSES"] = "0"


@pytest.hookimpl(tryfirst=True)  # before -m leaves out what is marked here
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--emulated"):
        left_out = set(_emulated_cases(items))
        config.hook.pytest_deselected(items=[i for i in items if i in left_out])
        items[:] = [i for i in items if i not in left_out]
    mark_repetitions(items)
    rank = {name: position for position, name in enumerate(LONG_FILES)}
    root = Path(__file__).parent
    items.sort(key=lambda i: rank.get(i.path.relative_to(root).as_posix(), len(rank)))


def pytest_collection_finish() -> None:
    """Let the collector of garbage leave out what lives as long as the process.

    Modules and cases are a million objects, which every full collection would walk. Young objects
    are looked at by ten thousands: TIR is made of many, and has few cycles.
    """
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


def _emulated_cases(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Return the cases on emulated CPUs but for one of each test, which its name chooses."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("emulated") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, found in cases.items():
        found.pop(zlib.crc32(name.encode()) % len(found))
        yield from found


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cpu", default="", metavar="TARGET",
        help="run code for this machine's CPU as emulated code for another one (avx512+amx_tile)",
    )  # fmt: skip
    parser.addoption(
        "--emulated", action="store_true", help="run all cases on emulated CPUs, not one per test"
    )
    parser.addoption(
        "--seed", default="0", help="of the numbers that tests draw: other ones for each (0)"
    )
    parser.addoption(
        "--update-snapshots", action="store_true", help="write snapshots instead of comparing"
    )


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    """Have a test draw the same numbers wherever and after whatever else it runs."""
    seed = zlib.crc32(f"{request.config.getoption('--seed')} {request.node.nodeid}".encode())
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


@pytest.fixture(scope="session")
def postgres_template() -> Iterator[tuple[str, str] | None]:
    """The URL of a PostgreSQL server and the name of a migrated database on it."""
    from tests import postgres

    with postgres.server_url() as server:
        if server is None:
            yield None
            return
        with postgres.database(server) as url:
            yield server, url.rsplit("/", 1)[1].split("?")[0]


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with ``snapshots/<name>.txt`` beside the test (at most 40 lines)."""
    folder = Path(request.path).parent / "snapshots"

    def check(name: str, text: str) -> None:
        assert text.count("\n") <= 40, "a snapshot is to be read: at most 40 lines"
        path = folder / f"{name}.txt"
        if request.config.getoption("--update-snapshots"):
            folder.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no {path.name}: run pytest --update-snapshots and review it"
        assert text == path.read_text(), f"differs from {path.name} (--update-snapshots rewrites)"

    return check
