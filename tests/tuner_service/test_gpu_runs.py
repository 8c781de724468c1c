"""Tuning runs for GPUs: on the emulator from end to end, and waiting where no device is."""

from __future__ import annotations

import io
from dataclasses import replace
from importlib.metadata import version

import pytest
from rich.console import Console

from recommender.hardware import load_profile
from recommender.measurement import MeasureStatus, Protocol
from tests.tuner_service.table_measurer import HARDWARE, TableMeasurer
from tilecore.codegen.nvrtc import load_nvrtc
from tuner_service.cli.console import print_result
from tuner_service.cli.offering import counted, offered
from tuner_service.coordinator.coordinator import Coordinator
from tuner_service.coordinator.run_driver import Limits
from tuner_service.coordinator.workplaces import HostWorkplace
from tuner_service.errors import HardwareNotOffered, InvalidRequest, RunHeld
from tuner_service.jobs import Effort, submit
from tuner_service.questions import answer, understand
from tuner_service.report import partial_result
from tuner_service.watch import follow, why_held
from tuner_service.wiring import host_toolchain, other_devices
from workers.devices import gpu_devices
from workers.errors import DeviceMissing
from workers.pool import LocalPool

PROBLEM = {"m": 64, "n": 48, "k": 64, "dtype": "float16", "out_dtype": "float16"}


def coordinator(store, question, **options):
    workplace = HostWorkplace(HARDWARE, lambda _: TableMeasurer(), **options)
    limits = Limits(poll_s=0.05, retry_base_s=0.01)
    return Coordinator(
        store, workplace=workplace, toolchain=question.toolchain, limits=limits, until_idle=True
    )


@pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")
@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("a100", "emulated NVIDIA A100-SXM4-40GB"),
        pytest.param("mi300x", "emulated AMD Instinct MI300X", marks=pytest.mark.exhaustive),
    ],
)
def test_a_run_on_an_emulated_gpu(store, settings, device, name):
    question = understand(store, "gemm", PROBLEM, hardware=f"emulated {device}")
    real = understand(store, "gemm", PROBLEM, hardware=device)
    before = answer(store, real, top_k=3)
    run, _ = submit(store, question, Effort(max_trials=3, time_limit_s=120))
    coordinator(
        store, question, others=[question.hardware],
        make_other=lambda hardware, _: LocalPool(
            hardware, artifact_dir=settings.artifact_dir, compile_workers=1
        ),
    ).run()  # fmt: skip
    done = store.runs.get(run.public_id)
    assert (done.state, done.error) == ("SUCCEEDED", None)
    trials = [t.measurement for t in store.trials.of_run(run.id)]
    assert {m.status for m in trials} == {MeasureStatus.OK}, [m.detail for m in trials]
    assert {m.protocol for m in trials} == {Protocol.SCREEN, Protocol.CONFIRM}
    assert {m.hardware.name for m in trials} == {name}
    kind = question.hardware.kind
    assert {m.toolchain for m in trials} == {host_toolchain().on(kind)}  # NVRTC among NVIDIA's
    assert host_toolchain().nvrtc == version("nvidia-cuda-nvrtc")
    assert {m.threads for m in trials} == {question.hardware.cores}
    knobs = set(question.definition.default_config(kind))
    assert all(set(m.config) == knobs for m in trials)
    best = done.result["best"]
    assert (best["fraction_of_peak"], best["ratio_to_reference"]) == (None, None)
    assert done.result["default"]["config"] == dict(question.definition.default_config(kind))
    assert partial_result(store, done)["best"] == best
    console = Console(width=80, file=io.StringIO())
    print_result(console, done, {"OK": 2}, "here")
    assert "times are the emulator's and say nothing of the device\n" in console.file.getvalue()
    assert answer(store, question, top_k=1)[0].source == "measured"
    assert [r.config for r in answer(store, real, top_k=3)] == [r.config for r in before]
    assert {r.source for r in answer(store, real, top_k=3)} == {"analytic"}


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("host", "worker --address HOST:PORT`"),  # once told to offer cuda, too
        ("mi300x", "HOST:PORT --offer rocm`"),
        ("emulated h200", 'HOST:PORT --offer "emulated NVIDIA H200"`'),
    ],
)
def test_who_waits_for_hardware_is_told_how_it_is_offered(store, name, command):
    question = understand(store, "gemm", PROBLEM, hardware=name)
    run, _ = submit(store, question, Effort(max_trials=2, time_limit_s=60, waits=True))
    assert command in why_held(run, "WAITING_FOR_HARDWARE")
    assert why_held(run, "PAUSED") == ""
    if name != "host":
        offer = command.partition("--offer ")[2].strip('`"')
        assert offer == "rocm" or load_profile(offer).key == question.hardware.key


def test_a_run_waits_for_a_gpu_only_if_it_is_asked_to(store):
    question = understand(store, "gemm", PROBLEM, hardware="h100")
    with pytest.raises(HardwareNotOffered, match=r"SV906.*NVIDIA H100 80GB HBM3"):
        submit(store, question, Effort(max_trials=2, time_limit_s=60))
    run, _ = submit(store, question, Effort(max_trials=2, time_limit_s=60, waits=True))
    coordinator(store, question).run()
    assert store.runs.get(run.public_id).state == "WAITING_FOR_HARDWARE"
    with pytest.raises(RunHeld, match=r"SV916.*no machine offers NVIDIA H100.*--offer cuda"):
        list(follow(store, run, None))
    other = understand(store, "gemm", PROBLEM, hardware="NVIDIA H100 NVL")  # nobody knows it
    with pytest.raises(HardwareNotOffered):
        submit(store, other, Effort(max_trials=2, time_limit_s=60, waits=True))


@pytest.mark.skipif(bool(gpu_devices()), reason="this machine has a GPU")
def test_what_a_machine_without_gpus_offers():
    assert offered("emulated H200")[0].name == "emulated NVIDIA H200"
    assert offered("cpu")[0].kind == "cpu"
    assert all(h.is_emulated for h in other_devices())
    for name in ("cuda", "h200", "rocm", "mi300x"):
        with pytest.raises(DeviceMissing, match=r"WK708.*\n.*nvidia-smi.*torch for ROCm"):
            offered(name)
    with pytest.raises(InvalidRequest, match=r"SV901.*expected cpu, cuda, rocm or a GPU's name"):
        offered("avx512")


def test_no_more_devices_are_offered_than_there_are():
    host, h200, emulated = (load_profile(n) for n in ("x86-64-avx2", "h200", "emulated h200"))
    assert [counted(h200, 4, wanted) for wanted in (None, 1, 4)] == [4, 1, 4]
    assert [counted(emulated, 1, wanted) for wanted in (None, 3)] == [1, 3]
    assert [counted(host, 1, wanted) for wanted in (None, 1)] == [1, 1]
    with pytest.raises(
        InvalidRequest, match=r"SV901.*--devices: expected 1 to 4 x .*H200.*, found 5"
    ):
        counted(h200, 4, 5)
    with pytest.raises(InvalidRequest, match=r"SV901.*--devices: expected 1 of a CPU.*, found 2"):
        counted(host, 1, 2)


def test_only_code_for_nvidia_gpus_is_of_a_version_of_nvrtc(store):
    ours = host_toolchain()
    other = replace(ours, nvrtc="0.0")
    assert other.on("cuda").key != ours.on("cuda").key
    assert other.on("cpu").key == ours.on("cpu").key == replace(ours, nvrtc="").key
    assert other.on("rocm") == ours.on("rocm")
    on_gpu, on_cpu = (understand(store, "gemm", PROBLEM, hardware=h) for h in ("h100", "host"))
    assert on_gpu.toolchain == ours
    assert on_cpu.toolchain == ours.on("cpu")
