"""Processes load what they need and nothing heavier."""

import subprocess
import sys

import pytest

from tilecore.kernels import MODULES

HEAVY = ("tvm", "torch", "ray")

APP = """
import sys, tempfile
from pathlib import Path
from tuner_service.app import create_app
from tuner_service.questions import answer, understand
from tuner_service.settings import Settings
app = create_app(Settings(data_dir=Path(tempfile.mkdtemp())))
app.openapi()
store = app.state.store
question = understand(store, "gemm", {"m": 64, "n": 64, "k": 64})
assert answer(store, question, top_k=3)
"""
RECOMMEND = """
import os, tempfile
os.environ["TILECORE_DATA_DIR"] = tempfile.mkdtemp()
from tuner_service.cli.app import run_cli
assert run_cli(["recommend", "softmax", "--set", "m=100", "--set", "n=200"]) == 0
"""
COMMAND = """
import os, tempfile
os.environ["TILECORE_DATA_DIR"] = tempfile.mkdtemp()
import subprocess, sys
from tuner_service.cli.app import run_cli
subprocess.run([sys.executable, "-m", "tuner_service", "migrate"], check=True)  # loads alembic
assert run_cli({arguments!r}) == {status}
"""
# Of a run that has ended all is in the database.
ENDED = """
import os, tempfile
os.environ["TILECORE_DATA_DIR"] = tempfile.mkdtemp()
import subprocess, sys
from tuner_service.cli.app import run_cli
done = subprocess.run([sys.executable, "-c", {made!r}], check=True, capture_output=True, text=True)
assert run_cli([*{arguments!r}, done.stdout.split()[-1]]) == 0
"""
MADE = """
from tuner_service import jobs, questions, wiring
from tuner_service.settings import load_settings
store = wiring.open_store(load_settings())
asked = questions.understand(store, "gemm", {"m": 64, "n": 64, "k": 64})
run, _ = jobs.submit(store, asked, jobs.Effort(max_trials=4, time_limit_s=9))
found = {"default": None, "recommended": None, "best": None, "trials": 0, "by_status": {}}
store.runs.finish(run.id, store.leader.acquire("me", 60), "SUCCEEDED", result=found)
print(run.public_id)
"""
# Questions about what the database has: neither the kernel library nor NumPy is needed.
LOOKS = {
    "runs": 0, "log": 0, "measurements --kernel gemm": 0,
    "keys list": 0, "node list": 0, "model list": 0, "db compact --dry-run": 0,
    "coordinator --check": 1, "run cancel r-none": 2,
}  # fmt: skip
BEYOND_SQL = (
    *HEAVY, "numpy", "scipy", "xgboost", "fastapi", "httpx", "tilecore.ir",
    "tilecore.kernels.definition", "tilecore.language", "recommender.space", "alembic",
)  # fmt: skip
OTHER_KERNELS = tuple(module for module in MODULES if not module.endswith(".rows"))
GPUS = ("recommender.gpu.limits", "recommender.gpu.model", "tilecore.inference.gpu")
CASES = {
    "the service, a recommendation included": (APP, HEAVY),
    "a recommendation without a cost model": (
        RECOMMEND,
        (
            *HEAVY,
            "fastapi",
            "xgboost",
            "scipy",
            "httpx",
            "limits",
            "structlog",
            "tilecore.jit",
            *OTHER_KERNELS,
            *GPUS,
        ),
    ),
    "recommender": ("import recommender.recommend, recommender.tuning", (*HEAVY, "sqlalchemy")),
    "workers": ("import workers, workers.host, workers.toolchain", ("ray", "tvm", "torch")),
    "settings": ("import tuner_service.settings", (*HEAVY, "sqlalchemy", "fastapi")),
    "tilecore itself": ("import tilecore", (*HEAVY, "numpy", "ml_dtypes", "tilecore.ir")),
    **{
        f"tilecore {line}": (COMMAND.format(arguments=line.split(), status=status), BEYOND_SQL)
        for line, status in LOOKS.items()
    },
    **{
        f"tilecore {line} of a run that has ended": (
            ENDED.format(made=MADE, arguments=line.split()),
            BEYOND_SQL,
        )
        for line in ("run show",)
    },
    "the command line's help": (
        "import tuner_service.cli.app",
        (*HEAVY, "fastapi", "xgboost", "numpy", "sqlalchemy", "tilecore.kernels"),
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
def test_processes_load_no_more_than_they_need(name):
    code, forbidden = CASES[name]
    code += f"\nimport sys; print([m for m in {forbidden!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[]"
