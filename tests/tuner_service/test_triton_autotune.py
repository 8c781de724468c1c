"""Triton's kernels on its interpreter: which configs are timed, and what other processes know."""

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed (the extra [triton])")

import triton.language as tl  # noqa: E402

from tuner_service.triton_autotune import autotune, described  # noqa: E402

CONFIGS = [
    triton.Config({"BLOCK": block}, num_warps=warps)
    for block in (16, 32, 64)
    for warps in (1, 2, 4)
]


def add(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y + i, tl.load(x + i, mask=i < n), mask=i < n)


@pytest.fixture
def tuned(settings, monkeypatch):
    """Return what decorates ``add`` as another process would, and the configs that were timed."""
    monkeypatch.setenv("TILECORE_DATA_DIR", str(settings.data_dir))
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)

    def decorate(configs=CONFIGS, trials=9, time_ms=None, **options):
        timed = []

        def bench(call, quantiles):
            call()
            config = kernel.current
            timed.append(config)
            return [time_ms(config)] * 3 if time_ms else [1.0 / config.kwargs["BLOCK"]] * 3

        decorated = autotune(
            configs, ["n"], trials=trials, do_bench=bench, reset_to_zero=["y"], **options
        )
        kernel = decorated(triton.jit(add))
        bench_one = kernel._bench

        def bench_known(*args, config, **meta):
            kernel.current = config
            return bench_one(*args, config=config, **meta)

        kernel._bench = bench_known
        return kernel, timed

    return decorate


def run(kernel, n):
    x, y = torch.randn(n), torch.zeros(n)
    kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
    assert torch.equal(x, y)  # timed runs are undone
    return kernel.best_config


def test_the_fastest_config_runs_and_other_processes_take_it(tuned):
    kernel, timed = tuned()
    assert run(kernel, 100).kwargs["BLOCK"] == 64
    assert len(timed) == 9
    run(kernel, 100)
    assert len(timed) == 9
    other, again = tuned()
    assert run(other, 100).all_kwargs() == kernel.best_config.all_kwargs()
    assert again == []


def test_fewer_are_timed_and_like_problems_are_known(tuned):
    kernel, timed = tuned(trials=8)
    run(kernel, 100)
    assert len(timed) == 8
    run(kernel, 120)
    assert timed[8].kwargs["BLOCK"] == 64  # first what was fast for 100


def test_a_config_that_does_not_run_is_no_choice(tuned):
    kernel, _ = tuned(time_ms=lambda c: float("inf") if c.kwargs["BLOCK"] == 64 else c.num_warps)
    assert run(kernel, 50).all_kwargs()["num_warps"] == 1
    assert kernel.best_config.kwargs["BLOCK"] < 64
    never, timed = tuned(configs=CONFIGS[:3], time_ms=lambda c: float("inf"))
    run(never, 70)
    assert len(timed) == 3


def test_an_error_of_the_kernels_comes_out(tuned):
    def fail(config):
        raise ZeroDivisionError

    kernel, _ = tuned(time_ms=fail)
    with pytest.raises(ZeroDivisionError):
        run(kernel, 60)


def test_without_a_database_triton_times_all(tuned, monkeypatch, caplog):
    monkeypatch.setenv("TILECORE_SERVICE_URL", "http://127.0.0.1:9")
    kernel, timed = tuned()
    assert run(kernel, 80).kwargs["BLOCK"] == 64
    assert len(timed) == 9
    assert "is timed by Triton alone" in caplog.text


def test_pruned_configs_are_not_timed(tuned):
    prune = {"early_config_prune": lambda configs, args, **meta: configs[:4]}
    kernel, timed = tuned(prune_configs_by=prune)
    run(kernel, 90)
    assert {id(c) for c in timed} <= {id(c) for c in CONFIGS[:4]}


def test_to_compile_times_nothing(tuned):
    kernel, timed = tuned()
    compiled = []
    kernel.fn.warmup = lambda *args, **meta: compiled.append(meta["BLOCK"])
    kernel.warmup(torch.float32, torch.float32, 100, grid=(1,))
    assert (len(compiled), timed) == (9, [])
    run(kernel, 100)
    assert len(timed) == 9


def test_configs_as_configurations():
    found = described(
        [
            triton.Config({"A": 1, "B": None}, maxnreg=128),
            triton.Config({"A": 1, "C": "x"}),
            triton.Config({"A": 1, "C": "x"}, pre_hook=print),
        ]
    )
    assert [c["maxnreg"] for c in found] == [128, -1, -1]
    assert [c["C"] for c in found] == ["None", "x", "x"]
    assert [c["twin"] for c in found] == [0, 0, 1]
    assert "twin" not in described(CONFIGS)[0]
