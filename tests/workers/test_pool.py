from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from recommender.measurement import MeasureStatus
from recommender.ports import Measurer
from tests.workers.fault_toolbox import HARDWARE, FaultToolbox
from tests.workers.measurer_contract import WAIT_S, MeasurerContract, confirm, screen
from workers.pool import LocalPool, wait_for_all


def make_pool(path: Path, **options: object) -> LocalPool:
    settings = {"compile_timeout_s": 6.0, "run_timeout_s": 6.0} | options
    return LocalPool(
        HARDWARE,
        artifact_dir=path,
        compile_workers=2,
        toolbox=FaultToolbox(),
        **settings,
    )


class TestLocalPool(MeasurerContract):
    @pytest.fixture(scope="class")
    def measurer(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measurer]:
        with make_pool(tmp_path_factory.mktemp("artifacts")) as pool:
            yield pool


def test_close_ends_a_hanging_candidate_and_every_process(tmp_path: Path) -> None:
    others = _zygotes()  # of tests that ran in this process before
    pool = make_pool(tmp_path, compile_timeout_s=WAIT_S, run_timeout_s=WAIT_S)
    wait_for_all(pool, [screen("ok")], WAIT_S)
    pool.submit([screen("hang", "hang"), screen("compile", "compile-hang")])
    time.sleep(0.3)
    assert _zygotes() - others
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < WAIT_S / 2
    assert _zygotes() - others == set()


@pytest.mark.exhaustive
def test_a_killed_forking_process_is_a_lost_worker_and_is_replaced(tmp_path: Path) -> None:
    others = _zygotes()
    with make_pool(tmp_path, run_timeout_s=WAIT_S) as pool:
        wait_for_all(pool, [screen("ok")], WAIT_S)
        pool.submit([screen("hang", "spin")])
        while not _is_spinning(ours := _zygotes() - others):
            time.sleep(0.1)
        for process in ours:
            if process.parent() not in ours:  # what it forked ends with it
                process.kill()
        psutil.wait_procs(ours, timeout=WAIT_S)
        [(request, lost)] = pool.collect(WAIT_S)
        assert request.token == "hang"
        assert lost.status is MeasureStatus.WORKER_LOST
        assert "WK701" in lost.detail
        # The process that did not run the candidate is found dead by the next one, lost as well
        # where nobody looked in between; the coordinator tries lost candidates again.
        statuses = []
        while MeasureStatus.OK not in statuses and len(statuses) < 3:
            found = wait_for_all(pool, [screen("next")], WAIT_S)["next"].status
            statuses.append(found)
        assert statuses[-1] is MeasureStatus.OK
        assert set(statuses[:-1]) <= {MeasureStatus.WORKER_LOST}


@pytest.mark.exhaustive
def test_two_confirm_batches_of_one_submit_keep_their_tokens(tmp_path: Path) -> None:
    with make_pool(tmp_path) as pool:
        requests = [confirm("a"), screen("b"), confirm("c", delay_us=100)]
        found = wait_for_all(pool, requests, WAIT_S)
    told = {token: (m.config, m.protocol) for token, m in found.items()}
    assert told == {r.token: (r.config, r.protocol) for r in requests}
    # A busy machine times some of them too unevenly.
    assert {m.status for m in found.values()} <= {MeasureStatus.OK, MeasureStatus.UNSTABLE}


def _zygotes() -> set[psutil.Process]:
    """Return the forking processes below this one, and what they forked."""
    ours = psutil.Process().children(recursive=True)
    return {p for p in ours if "workers.zygote" in _command(p)}


def _is_spinning(ours: set[psutil.Process]) -> bool:
    """Return whether what one of these forked has computed for a while."""
    for process in ours:
        with suppress(psutil.NoSuchProcess):
            if process.parent() in ours and process.cpu_times().user > 0.5:
                return True
    return False


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
