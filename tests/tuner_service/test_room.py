"""A run whose tensors find no room is refused before it is queued; what may fit never is."""

import numpy as np
import pytest

from recommender.open_shapes import tensor_bytes
from recommender.workload import Workload
from tests.tuner_service.serving import TestClient
from tests.tuner_service.test_app import problem
from tests.tuner_service.test_programs import JSON, as_data
from tilecore import kernels
from tuner_service import questions
from tuner_service.app import create_app
from tuner_service.cli.app import run_cli
from tuner_service.errors import TooLargeToMeasure
from tuner_service.room import COPIES, check_room
from workers.host import MEASURED_BYTES, candidate_memory_bytes
from workers.problem import KernelProblem

HUGE = {"m": 1 << 20, "n": 1 << 20, "k": 1 << 20}
RAGGED = [("gemm", {"m": 33, "n": 21, "k": 17}), ("dequant_gemm", {"m": 3, "n": 40, "k": 96}),
          ("softmax", {"m": 5, "n": 1001, "dtype": "float16"})]  # fmt: skip
EVEN = [
    (d.name, {f.name: 16 for f in d.fields if f.kind == "dimension" and f.default is None})
    for d in kernels.KERNELS.values()
    if d.name != "dequant_gemm"
]


@pytest.fixture
def client(settings, store):
    with TestClient(create_app(settings, store)) as client:
        yield client


@pytest.mark.parametrize(("name", "given"), [*RAGGED, *EVEN])
def test_a_candidate_holds_at_least_what_is_counted(name, given):
    definition = kernels.get(name)
    canonical = definition.parse_problem(given)
    made = KernelProblem.fresh(Workload.of(name, canonical), definition, lambda *_: None)
    counted = tensor_bytes(definition, canonical)
    outputs = [out.array for out in made.outputs]
    assert counted == sum(x.nbytes for x in (*made.inputs, *outputs))
    held = (*made.inputs, *made.pristine, *outputs, *map(np.asarray, made.expected))
    assert sum(x.nbytes for x in held) >= COPIES * counted
    assert counted == tensor_bytes(definition.on("cuda"), canonical)


def test_a_run_that_finds_no_room_is_not_queued(client, store, settings, capsys, monkeypatch):
    refused = client.post("/v1/tuning-runs", json={"kernel": "gemm", "problem": HUGE})
    detail = problem(refused, 422, "SV932")["detail"]
    limit = candidate_memory_bytes(MEASURED_BYTES) / 2**30
    assert f"this machine, {limit:.1f} GiB, found 24,576.0 GiB" in detail
    small = {"kernel": "gemm", "problem": {"m": 64, "n": 64, "k": 64}}
    group = {"runs": [small, {"kernel": "gemm", "problem": HUGE}]}
    assert problem(client.post("/v1/tuning-runs:batch", json=group), 422, "SV932")
    assert store.runs.list() == []
    monkeypatch.setenv("TILECORE_DATA_DIR", str(settings.data_dir))
    sizes = [word for name, size in HUGE.items() for word in (f"--{name}", str(size))]
    assert run_cli(["tune", "gemm", *sizes]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "SV932" in told
    assert "24,576.0 GiB" in told
    assert client.post("/v1/tuning-runs", json=small).status_code == 202


@pytest.mark.parametrize("on_this_host", [True, False])
def test_the_limit_is_that_of_a_candidates_process(store, on_this_host):
    limit = candidate_memory_bytes(MEASURED_BYTES) if on_this_host else MEASURED_BYTES
    rows = limit // (COPIES * 2 * 4 * 4096)  # of softmax: x and y, float32

    def question(m):
        return questions.understand(store, "softmax", {"m": m, "n": 4096})

    check_room(store, question(rows), on_this_host=on_this_host)
    with pytest.raises(TooLargeToMeasure, match="this machine" if on_this_host else "any machine"):
        check_room(store, question(rows + 1), on_this_host=on_this_host)


def test_nothing_is_said_of_a_gpu(store):
    question = questions.understand(store, "gemm", HUGE, hardware="h100")
    check_room(store, question, on_this_host=True)


def test_a_program_as_data_is_counted_too(client, store):
    data = as_data()
    digest = client.post("/v1/programs", content=data.to_bytes(), headers=JSON).json()["digest"]
    asked = {"program": digest, "problem": dict.fromkeys("MNK", 1 << 20), "max_trials": 2}
    assert problem(client.post("/v1/tuning-runs", json=asked), 422, "SV932")
    assert store.runs.list() == []
