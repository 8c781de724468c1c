"""``kernel.recommend`` and ``tilecore recommend program.py:function``: any program, any device."""

import importlib.metadata
import json
import logging
import tomllib
from pathlib import Path

import numpy as np
import pytest

from recommender.hardware import load_profile
from recommender.measurement import Protocol
from recommender.portable_tracing import portable
from recommender.programs import version
from recommender.workload import Workload, kernel_name
from tests.recommender import user_programs as programs
from tests.recommender.support import measured
from tests.tuner_service.test_cli import cli  # noqa: F401
from tilecore import compiler, jit
from tilecore.advice import question_of, recommend
from tilecore.artifact import ArtifactStore
from tilecore.autotuner import autotune
from tilecore.codegen.nvrtc import load_nvrtc
from tilecore.errors import RecommenderMissing, TypeMismatch
from tilecore.logged import static_problem_of
from tilecore.recommending import installed_recommender
from tilecore.target import AVX2, AVX512
from tilecore.tile_config import TileConfig
from tuner_service import advice, wiring
from tuner_service.advice import compile_target, device_of
from tuner_service.cli.programs import loaded
from tuner_service.errors import TooManyThreads
from tuner_service.wiring import detected_host

ROOT = Path(__file__).parents[2]
FILE = Path(programs.__file__)
SIZES = {"M": 192, "N": 256, "K": 320}


@pytest.fixture
def installed(monkeypatch, tmp_path, settings):
    """This checkout's entry points, as an installation of it would have them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = tmp_path / "path" / "tilecore-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tilecore\nVersion: 0.1.0\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
    monkeypatch.syspath_prepend(str(info.parent))
    monkeypatch.setenv("TILECORE_DATA_DIR", str(settings.data_dir))
    installed_recommender.cache_clear()
    yield
    installed_recommender.cache_clear()


def test_a_recommended_config_runs_on_this_machine(installed):
    found = programs.matmul.recommend(**SIZES, top_k=3)
    assert len(found) == 3
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((192, 320), (320, 256)))
    out = np.zeros((192, 256), np.float16)
    for r in found:
        programs.matmul(**SIZES, **r.config, **r.lowering)(a, b, out)
        np.testing.assert_allclose(out, a.astype(np.float32) @ b.astype(np.float32), atol=0.1)
    modelled = [r for r in found if r.source == "analytic"]  # behind what ships for such machines
    assert modelled[0].time_s <= modelled[-1].time_s
    assert modelled[0].rationale.startswith("rank 1 of")


def test_models_answer_where_the_database_is_away(installed, monkeypatch, caplog):
    """`kernel.recommend` and computations failed where it was away, or had no room."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setenv("TILECORE_DATABASE_URL", "sqlite:////proc/none/tilecore.db")
    now = [0.0]
    monkeypatch.setattr(advice, "OUTAGE", advice.Outage(lambda: now[0]))
    for _ in range(2):
        found = programs.matmul.recommend(**SIZES, top_k=1)
        assert (len(found), found.hardware) == (1, detected_host().name)
        assert "no measurement counts: " in found.notes[-1]
        assert "DB804" in found.notes[-1]
    assert caplog.text.count("recommending without") == 1  # it was asked once
    monkeypatch.delenv("TILECORE_DATABASE_URL")
    now[0] = advice.ASKED_AGAIN_S
    again = programs.matmul.recommend(**SIZES, top_k=1)
    assert again.notes == found.notes[:-1]
    assert again.configs == found.configs  # what ships answers either way
    assert programs.matmul.recommend(**SIZES, target="h100", top_k=1).hardware


def test_an_eager_function_and_its_tensors(installed):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((64, 96), (96, 128)))
    by_tensors = programs.eager_matmul.recommend(a, b, top_k=2)
    by_name = programs.eager_matmul.recommend(M=64, N=128, K=96, top_k=2)
    assert by_tensors.configs == by_name.configs
    out = programs.eager_matmul(a, b, **by_name[0].config)
    np.testing.assert_allclose(out, a.astype(np.float32) @ b.astype(np.float32), atol=0.1)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")
@pytest.mark.parametrize("device", ["sm_80", "h100"])
@pytest.mark.parametrize("name", ["matmul", "attention"])
def test_a_recommended_config_compiles_for_a_gpu(installed, tmp_path, device, name):
    given = {"matmul": {"M": 4096, "N": 4096, "K": 4096}, "attention": {"B": 4, "H": 16, "S": 2048,
             "D": 128}}[name]  # fmt: skip
    program = getattr(programs, name)
    found = program.recommend(**given, target=device, top_k=2)
    for r in found:
        func = program.program(**given, **r.config)
        built = compiler.compile(func, device, store=ArtifactStore(tmp_path))
        assert built.manifest.resources["spill_bytes"] == 0
        assert built.manifest.device.arch.startswith("sm_80" if device == "sm_80" else "sm_90")


def test_plain_functions_and_autotuned_ones(installed):
    found = recommend(programs.scaled, 1 << 16, 2.0, target="a100", top_k=1)
    assert set(found[0].config) == {"block_N"}
    assert found.hardware.startswith("NVIDIA A100")
    configs = [{"block_M": m, "threads": 128} for m in (32, 64)]
    tuned = autotune(configs=configs)(programs.matmul)
    choice = tuned.recommend(**SIZES, target="h100")
    assert {r.config["block_M"] for r in choice} <= {32, 64}
    assert choice.enumerated % 2 == 0
    assert recommend(tuned, **SIZES, target="h100").configs == choice.configs
    fixed = tuned.recommend(**SIZES, target="h100", block_M=64)
    assert "block_M" not in fixed[0].config


def test_the_target_of_jit_is_the_device(installed):
    own = jit(programs.matmul.wrapped, target="h100").recommend(**SIZES, top_k=1)
    assert own.hardware == load_profile("h100").name
    here = programs.matmul.recommend(**SIZES, top_k=1, cores=1)
    assert here.hardware == detected_host().name
    with pytest.raises(TooManyThreads):
        programs.matmul.recommend(**SIZES, cores=10_000)
    with pytest.raises(TypeMismatch, match="finished program"):
        jit(programs.scaled(64, 2.0, 64)).recommend()


def test_devices_by_any_name(store):
    assert device_of(store, None)[0].key == detected_host().key
    for name in ("cuda", "sm_80", "cuda -arch=sm_80"):
        assert device_of(store, name)[0].arch == "sm_80", name
    assert device_of(store, "hip")[0].arch == "gfx942"
    found, asked_for = device_of(store, "rtx4080")
    assert (found.arch, asked_for) == ("sm_89", "rtx4080")
    assert compile_target(load_profile("avx2")) == AVX2.isa
    assert compile_target(load_profile("avx512")) == AVX512.isa


@pytest.mark.parametrize("prefix", ["", "emulated "])
def test_cpus_by_their_instructions(store, prefix):
    cpu, asked_for = device_of(store, f"{prefix}avx512+amx_bf16+amx_tile")
    assert (cpu.arch, asked_for) == ("x86-64-avx512", "")
    assert {"avx512f", "amx_bf16", "amx_tile"} <= set(cpu.features)
    assert compile_target(cpu) == "avx512+amx_bf16+amx_tile"


def test_without_an_installation(monkeypatch):
    installed_recommender.cache_clear()
    monkeypatch.setattr(importlib.metadata.MetadataPathFinder, "find_distributions",
                        classmethod(lambda cls, *a, **k: iter(())))  # fmt: skip
    with pytest.raises(RecommenderMissing, match=r"tilecore\.recommender"):
        programs.matmul.recommend(**SIZES)
    installed_recommender.cache_clear()


def test_command_line(cli):  # noqa: F811
    sizes = ["--m", "512", "--n", "512", "--k", "512"]
    status, out, _ = cli("recommend", f"{FILE}:matmul", *sizes, "--hardware", "h100",
                         "--fixed", "block_K=64", "--space", "block_M=64,128")  # fmt: skip
    assert status == 0
    assert "NVIDIA H100" in out
    assert "1. block_M=" in out
    status, out, _ = cli("recommend", f"{FILE}:eager_matmul", "--set", "M=512", "--set", "N=512",
                         "--set", "K=512", "--json", "--top-k", "2", "--threads", "1")  # fmt: skip
    answer = json.loads(out)
    assert status == 0
    assert [r["rank"] for r in answer["recommendations"]] == [1, 2]
    assert set(answer["recommendations"][0]["config"]) == {"block_M", "block_N", "block_K"}
    assert answer["traces"] == 1


def test_the_command_line_knows_what_was_measured(cli, store):  # noqa: F811
    """As @autotune files it: under the script's name, shapes, and the version of the candidate."""
    with loaded(f"{FILE}:matmul") as function:
        asked = question_of(function, (), SIZES, target=None)
        func = asked.trace({"block_M": 64, "block_N": 32, "block_K": 32})
        problem = static_problem_of(func.params[:2])
    assert problem is not None
    host, toolchain = wiring.host_profile(store), wiring.host_toolchain().on("cpu")
    tiles = TileConfig.of(block_M=64, block_N=32, block_K=32)
    found = measured(
        Workload.of(asked.logged, problem), tiles, 2e-3, hardware=host, toolchain=toolchain,
        program=version(func, "", {}), protocol=Protocol.CONFIRM,
    )  # fmt: skip
    store.add(found)
    sizes = [part for name, size in SIZES.items() for part in ("--set", f"{name}={size}")]
    _, out, _ = cli("recommend", f"{FILE}:matmul", *sizes, "--json")
    first = json.loads(out)["recommendations"][0]
    assert first["source"] == "measured"
    assert {**first["config"], **tiles} == first["config"]


def test_the_command_line_knows_what_a_run_measured(cli, store):  # noqa: F811
    host, toolchain = wiring.host_profile(store), wiring.host_toolchain().on("cpu")
    with loaded(f"{FILE}:matmul") as function:
        program = portable(question_of(function, (), SIZES, target=None), host)
    store.programs.add(program.digest, program.name, program.to_bytes(), "local")
    tiles = TileConfig.of(block_M=64, block_N=32, block_K=32, num_stages=3, threads=128)
    at = Workload.of(kernel_name(program.digest), SIZES)
    store.add(measured(at, tiles, 2e-3, hardware=host, toolchain=toolchain,
                       protocol=Protocol.CONFIRM))  # fmt: skip
    sizes = [part for name, size in SIZES.items() for part in ("--set", f"{name}={size}")]
    _, out, _ = cli("recommend", f"{FILE}:matmul", *sizes, "--json")
    first = json.loads(out)["recommendations"][0]
    assert (first["source"], first["config"]) == ("measured", dict(tiles))


def test_a_file_without_a_function_tells_those_it_has(cli):  # noqa: F811
    status, _, err = cli("recommend", str(FILE), "--m", "64")
    assert (status, err[:12]) == (2, "error: SV913")
    assert f"hint: it has {FILE}:matmul, {FILE}:eager_matmul, " in err


BAD = {
    "no file": (["nowhere.py:matmul"], "SV913"),
    "no function": ([str(FILE)], "SV913"),
    "unknown function": ([f"{FILE}:matmall"], "SV913"),
    "no program": ([f"{FILE}:LOG2_E"], "TC202"),
    "missing size": ([f"{FILE}:matmul", "--m", "4"], "TC202"),
    "no assignment": ([f"{FILE}:matmul", "--set", "M"], "TC502"),
    "no value": ([f"{FILE}:matmul", "--fixed", "block_M="], "TC502"),
    "unknown device": ([f"{FILE}:matmul", "--hardware", "z80"], "RC601"),
    "too many cores": ([f"{FILE}:scaled", "--n", "64", "--set", "factor=0.5", "--threads", "9999"],
                       "SV907"),
    "library kernel": (["gemm", "--fixed", "block_M=64"], "TC502"),
    "syntax": (["{tmp}/syntax.py:f"], "TC105"),
    "import fails": (["{tmp}/fails.py:f"], "TC105"),
    "exits": (["{tmp}/exits.py:f"], "SV913"),
}  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("case", BAD)
def test_bad_command_lines(cli, tmp_path, case):  # noqa: F811
    texts = {"syntax": "def f(:\n", "fails": "x = 1\n1 / 0\n", "exits": "raise SystemExit(3)\n"}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    arguments, code = BAD[case]
    status, _, err = cli("recommend", *(a.replace("{tmp}", str(tmp_path)) for a in arguments))
    assert status == 2
    assert err.startswith(f"error: {code}"), err
    assert "Traceback" not in err


def test_a_file_with_null_bytes_is_named(cli, tmp_path):  # noqa: F811
    """It said of no file that source code cannot contain them."""
    path = tmp_path / "nulls.py"
    path.write_bytes(b"x = 1\ny = 2\0\n")
    status, _, err = cli("recommend", f"{path}:f")
    assert status == 2
    assert f"--> {path}:2" in err
