"""Recommendations for GPUs that are not here: profiles, spaces, resources, the analytic model."""

from dataclasses import replace

import numpy as np
import pytest

import tilecore
from recommender.analytic import estimate
from recommender.errors import EmptySpace
from recommender.gpu import columns as gpu_columns
from recommender.gpu.model import GpuConstants, gpu_terms
from recommender.gpu.products import CONVERSION_OPERATIONS, products
from recommender.gpu.resources import block_resources, target_of
from recommender.hardware import load_profile, profile_names
from recommender.recommend import recommend
from recommender.space import SearchSpace
from recommender.workload import Workload
from tests.recommender.support import MemoryStore
from tests.tilecore.cuda.tile_programs import gemm
from tilecore import kernels
from tilecore.errors import InvalidConfig
from tilecore.gpu_compiler import lower_gpu, lower_to_tir
from tilecore.graph import build
from tilecore.kernels.attention import ATTENTION
from tilecore.kernels.dequant_gemm import DEQUANT_GEMM
from tilecore.kernels.gemm import GEMM

GPUS = [name for name in profile_names() if load_profile(name).kind != "cpu"]


def gemm_space(device, m=4096, n=4096, k=4096, dtype="float16"):
    problem = GEMM.parse_problem({"m": m, "n": n, "k": k, "dtype": dtype, "out_dtype": dtype})
    return SearchSpace.build(GEMM, problem, load_profile(device))


def attention_space(device):
    values = {"batch": 4, "heads": 16, "kv_heads": 16, "seq_q": 2048, "seq_kv": 2048, "dim": 128}
    problem = ATTENTION.parse_problem({**values, "dtype": "float16"})
    return SearchSpace.build(ATTENTION, problem, load_profile(device))


def test_there_are_profiles_of_the_targets_with_sources():
    assert len(GPUS) >= 19
    for name in GPUS:
        profile = load_profile(name)
        target = target_of(profile)
        assert target.multiprocessors == profile.cores, name
        assert target.arch == profile.arch
        assert profile.peak_flop_per_s["float16"] > profile.bandwidth_bytes_per_s
        assert profile.l2_bandwidth_bytes_per_s > profile.bandwidth_bytes_per_s
        assert profile.source


def test_names_that_torch_gives_devices():
    for spelling in ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA GeForce RTX 4090",
                     "NVIDIA GeForce RTX 5090", "Tesla T4", "NVIDIA L4"):  # fmt: skip
        assert load_profile(spelling).name == spelling


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_gets_a_recommendation_below_its_peak(name):
    space = gemm_space(name)
    found = estimate(space)
    assert len(space) > 500
    assert np.isfinite(found.time_s).all()
    rate = found.work_flop / found.time_s.min()
    known = space.known(space.columns)
    (product,) = products(space.graph.launches[0], known, target_of(space.hardware))
    unit = "float16" if product.is_tensor.all() else "float32"
    peak = space.hardware.peak_flop_per_s[unit]
    assert 0.3 * peak < rate < peak
    total = sum(found.terms_s.values())
    np.testing.assert_allclose(total, found.time_s)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("device", ["h100", "a100"])
@pytest.mark.parametrize("make", [gemm_space, attention_space])
def test_shared_memory_is_what_the_compiler_takes(device, make):
    space = make(device)
    target = target_of(space.hardware)
    (launch,) = space.graph.launches
    known = space.known(space.columns)
    block = block_resources(launch, known, target, products(launch, known, target))
    for row in np.random.default_rng(3).choice(len(space), 3, replace=False):
        program = space.definition.program(space.problem, dict(space.config(row)))
        plan, _, _ = lower_gpu(program, target)
        (made,) = plan.launches.values()
        assert block.shared_bytes[row] == made.shared_bytes, space.config(row)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("device", ["mi300x", "mi250"])
@pytest.mark.parametrize(("rows", "columns"), [(64, 128), (128, 256), (256, 256)])
def test_sums_that_find_no_room_in_shared_memory_go_out_directly(device, rows, columns):
    config = {"block_M": rows, "block_N": columns, "block_K": 32, "num_stages": 1, "threads": 512}
    problem = {"m": 512, "n": 512, "k": 512, "dtype": "float16"}
    for out_dtype, staged in (("float16", 128 * 256), ("float32", 64 * 256)):
        definition = kernels.get("gemm").on("rocm")
        full = definition.parse_problem(problem | {"out_dtype": out_dtype})
        space = SearchSpace.build(definition, full, load_profile(device))
        assert space.contains(config)
        target, table = target_of(space.hardware), space.known(space.table([config]))
        (launch,) = space.graph.launches
        block = block_resources(launch, table, target, products(launch, table, target))
        made = tilecore.compile(definition.program(full, config), target=device)
        assert block.shared_bytes[0] == made.artifact.manifest.resources["shared_bytes"]
        is_direct = rows * columns > staged
        assert block.sectors[0] == (2 if is_direct and out_dtype == "float16" else 1)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("make", "config", "resident"),
    [
        # Warps that copy are launched with as many registers as those that compute.
        (attention_space, {"block_M": 64, "block_N": 96, "num_stages": 2, "threads": 128}, 1),
        (attention_space, {"block_M": 64, "block_N": 32, "num_stages": 2, "threads": 128}, 2),
        (attention_space, {"block_M": 128, "block_N": 128, "num_stages": 2, "threads": 256}, 1),
        (gemm_space, {"block_M": 128, "block_N": 128, "block_K": 32, "num_stages": 3,
                      "threads": 128}, 1),
        (gemm_space, {"block_M": 16, "block_N": 64, "block_K": 128, "num_stages": 4,
                      "threads": 64}, 2),
    ],
)  # fmt: skip
def test_blocks_that_a_multiprocessor_holds(make, config, resident):
    """As the driver's occupancy was on an H200, 2026-11-26 (benchmarks/data/h200)."""
    space = make("h200")
    columns = space.known(space.table([config]))
    (launch,) = space.graph.launches
    target = target_of(space.hardware)
    block = block_resources(launch, columns, target, products(launch, columns, target))
    assert block.resident[0] == resident


def test_a_block_whose_sums_leave_no_registers_is_not_worth_trying():
    """256 x 256 sums of 512 threads, beside warps that copy: 2 KB spilled."""
    space = gemm_space("h200")
    config = {"block_M": 256, "block_N": 256, "block_K": 64, "num_stages": 3, "threads": 512}
    assert not space.contains(config)


def test_what_does_not_fit_is_named():
    space = gemm_space("h100")
    huge = {"block_M": 256, "block_N": 256, "block_K": 128, "num_stages": 4, "threads": 256}
    assert any("232448 B shared" in line for line in space.explain(huge))
    with pytest.raises(InvalidConfig, match="num_stages"):
        space.check(huge)
    with pytest.raises(InvalidConfig, match="whole warps"):
        space.check({**huge, "num_stages": 1, "threads": 100})


def test_large_products_are_bound_by_tensor_cores_and_small_batches_by_memory():
    assert "tensor" in str(estimate(gemm_space("h100", 8192, 8192, 8192)).bound_by)
    few = estimate(gemm_space("h100", 16, 8192, 8192))
    best = few.at(int(np.argmin(few.time_s)))
    assert best.bound_by in ("memory", "l2", "waiting")
    assert "132 multiprocessors" in best.explain()
    # 2 * 8192 * 8192 bytes of weights at 3.35 TB/s take 40 us.
    assert 40e-6 < best.time_s < 80e-6


def test_a_recommendation_without_a_measurement():
    values = {"m": 4096, "n": 4096, "k": 4096, "dtype": "float16", "out_dtype": "float16"}
    workload = Workload.of("gemm", GEMM.parse_problem(values))
    found = recommend(workload, GEMM, load_profile("h100"), MemoryStore(), top_k=8)
    assert len({r.config for r in found}) == 8
    assert {r.source for r in found} == {"analytic"}
    assert set(found[0].config) == {"block_M", "block_N", "block_K", "num_stages", "threads"}
    assert found[0].config["block_M"] * found[0].config["block_N"] >= 128 * 128


def test_a_kernel_without_values_for_gpus_says_so():
    of_cpus = replace(
        DEQUANT_GEMM, gpu=None, knobs=tuple(
            replace(k, values={"cpu": k.values_on("cpu")}) for k in DEQUANT_GEMM.knobs
        ),
    )  # fmt: skip
    problem = of_cpus.parse_problem({"m": 1, "n": 1024, "k": 1024})
    with pytest.raises(EmptySpace, match=r"RC602 .*no values for block_M, threads on cuda"):
        SearchSpace.build(of_cpus, problem, load_profile("h100"))


def library_space(name, device, **fields):
    definition = kernels.get(name)
    return SearchSpace.build(definition, definition.parse_problem(fields), load_profile(device))


LIBRARY = [
    ("split_k_gemm", {"m": 128, "n": 512, "k": 16384, "dtype": "bfloat16"}),
    ("grouped_gemm", {"m": 4096, "experts": 8, "n": 4096, "k": 2048, "dtype": "bfloat16"}),
    ("dequant_gemm", {"m": 32, "n": 4096, "k": 4096}),
    ("dequant_gemm", {"m": 2048, "n": 4096, "k": 4096}),
    ("decode_attention", {"batch": 8, "heads": 32, "kv_heads": 8, "seq_q": 1, "seq_kv": 8192,
                          "dim": 128, "dtype": "bfloat16"}),
    ("attention_backward", {"batch": 4, "heads": 16, "kv_heads": 16, "seq_q": 2048,
                            "seq_kv": 2048, "dim": 128, "dtype": "bfloat16"}),
    ("linear_attention", {"batch": 4, "heads": 16, "seq_len": 4096, "dim": 128, "dim_v": 128,
                          "dtype": "bfloat16"}),
]  # fmt: skip


ROWS_MOVED_BYTES = 512  # of a row's number that another division of warps needs elsewhere


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("device", ["a100", "h100"])
@pytest.mark.parametrize("case", LIBRARY, ids=lambda c: f"{c[0]}-{c[1].get('m', '')}")
def test_library_kernels_have_spaces_whose_shared_memory_is_the_compilers(case, device):
    name, fields = case
    space = library_space(name, device, **fields)
    target, found = target_of(space.hardware), estimate(space)
    assert len(space) >= 10
    assert np.isfinite(found.time_s).all()
    (row,) = np.random.default_rng(5).choice(len(space), 1)
    program = space.definition.program(space.problem, dict(space.config(row)))
    plan, _, _ = lower_gpu(program, target)
    for launch, made in zip(space.graph.launches, plan.launches.values(), strict=True):
        known = space.known(space.columns)
        block = block_resources(launch, known, target, products(launch, known, target))
        more = made.shared_bytes - block.shared_bytes[row]
        assert 0 <= more <= ROWS_MOVED_BYTES, space.config(row)


WIDE_HEADS = {
    "batch": 2,
    "heads": 8,
    "kv_heads": 8,
    "seq_q": 512,
    "seq_kv": 512,
    "dim": 256,
    "dtype": "float16",
}


@pytest.mark.parametrize(
    ("device", "name", "fields", "config"),
    [
        # Several warps have a row of the scores.
        ("a100", "attention", WIDE_HEADS,
         {"block_M": 64, "block_N": 64, "num_stages": 1, "threads": 256}),
        ("b200", "attention", WIDE_HEADS,
         {"block_M": 192, "block_N": 32, "num_stages": 3, "threads": 256}),
        # Quads hold sums otherwise than operands.
        ("v100", "attention", WIDE_HEADS | {"dim": 128},
         {"block_M": 64, "block_N": 96, "num_stages": 1, "threads": 128}),
        # Multiply-adds: there is no matrix instruction for bfloat16.
        ("t4", "attention", WIDE_HEADS | {"dim": 64, "dtype": "bfloat16"},
         {"block_M": 64, "block_N": 64, "num_stages": 1, "threads": 128}),
        ("v100", "dequant_gemm", {"m": 32, "n": 4096, "k": 4096},
         {"block_K": 128, "block_M": 32, "block_N": 128, "num_stages": 2, "splits": 4,
          "threads": 256}),
    ],
)  # fmt: skip
def test_operands_that_registers_do_not_hold_take_shared_memory(device, name, fields, config):
    space = library_space(name, device, **fields)
    target, table = target_of(space.hardware), space.known(space.table([config]))
    launch = space.graph.launches[0]
    block = block_resources(launch, table, target, products(launch, table, target))
    plan, _, _ = lower_gpu(space.definition.program(space.problem, config), target)
    made = next(iter(plan.launches.values()))
    assert 0 <= made.shared_bytes - block.shared_bytes[0] <= ROWS_MOVED_BYTES


@pytest.mark.few(3)
@pytest.mark.covering
@pytest.mark.parametrize("device", ["v100", "t4", "a100", "h100", "b200", "mi300x"])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("attention", {"dim": 64, "dtype": "bfloat16"}),  # multiply-adds on V100 and T4
        ("attention", {"dim": 128, "dtype": "float16"}),  # in tensor memory on B200
        ("attention", {"dim": 64, "dtype": "float32"}),  # sums lie otherwise than operands
        ("attention", {"dim": 256, "dtype": "float16"}),  # products divide rows otherwise
        ("decode_attention", {"dim": 128, "seq_q": 1, "dtype": "bfloat16"}),
    ],
)
def test_what_fills_shared_memory_is_counted_to_the_byte(device, name, fields):
    """At the limit a config passed that inference refuses: vectors of rows were left out (1 KB),
    words of tensor memory, and the weights of attention in float32 (24 KB).
    """
    space = library_space(name, device, **(WIDE_HEADS | fields))
    target, known = target_of(space.hardware), space.known(space.columns)
    first = space.graph.launches[0]
    block = block_resources(first, known, target, products(first, known, target))
    for row in np.argsort(-block.shared_bytes, kind="stable")[:4]:
        program = space.definition.program(space.problem, dict(space.config(row)))
        made = next(iter(lower_gpu(program, target)[0].launches.values()))
        assert block.shared_bytes[row] == made.shared_bytes, space.config(row)


@pytest.mark.parametrize("device", ["a100", "v100"])
def test_what_is_recommended_has_room_for_its_operands(device):
    space = library_space("attention", device, **WIDE_HEADS)
    target, order = target_of(space.hardware), np.argsort(estimate(space).time_s)
    for row in order[:3]:
        lower_gpu(space.definition.program(space.problem, dict(space.config(row))), target)
    with pytest.raises(InvalidConfig, match="shared"):
        space.check({"block_M": 128, "block_N": 64, "num_stages": 3, "threads": 256})


@pytest.mark.few(1)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("device", ["a100", "h100"])
def test_what_is_added_by_whole_tiles_is_known(device, causal):
    fields = dict(LIBRARY)["attention_backward"] | {"causal": causal}
    space = library_space("attention_backward", device, **fields)
    target, launch = target_of(space.hardware), space.graph.launches[1]
    known = space.known(space.columns)
    block = block_resources(launch, known, target, products(launch, known, target))
    for row in np.random.default_rng(2).choice(len(space), 6, replace=False):
        program = space.definition.program(space.problem, dict(space.config(row)))
        made = list(lower_gpu(program, target)[0].launches.values())[1]
        assert block.by_tiles[row] == bool(made.updates), space.config(row)
        more = made.shared_bytes - block.shared_bytes[row]
        assert abs(more) <= ROWS_MOVED_BYTES, space.config(row)


def test_adding_by_elements_takes_its_time():
    """On an H200 that was 4.6 ms where a block had 128 keys, 8.3 ms where it had 64."""
    fields = dict(LIBRARY)["attention_backward"] | {"seq_q": 4096, "seq_kv": 4096}
    space = library_space("attention_backward", "h200", **fields)
    known = space.known(space.columns)
    # There was no tile yet that blocks had to wait for.
    constants = GpuConstants(added_by_tiles=GpuConstants().added, store_latency_s=0.0)
    found = sum(gpu_terms(space.graph, known, space.hardware, constants).terms.values())
    times = {tuple(space.config(r).values()): found[r] * 1e3 for r in range(len(space))}
    assert times[64, 128, 2, 256] == pytest.approx(4.62, rel=0.15)
    assert times[64, 64, 2, 128] == pytest.approx(8.34, rel=0.15)


@pytest.mark.covering
@pytest.mark.parametrize("device", ["h100", "mi300x"])
@pytest.mark.parametrize("case", LIBRARY, ids=lambda c: f"{c[0]}-{c[1].get('m', '')}")
def test_columns_by_combinations_of_knobs_say_what_plain_ones_do(case, device, monkeypatch):
    name, fields = case
    space = library_space(name, device, **fields)
    plain = space.columns
    expected = estimate(space, plain).time_s
    kept = [np.asarray(limit.holds(plain)) for limit in space.limits]
    monkeypatch.setattr(gpu_columns, "MANY_CONFIGS", 0)
    np.testing.assert_array_equal(estimate(space).time_s, expected)
    for limit, mask in zip(space.limits, kept, strict=True):
        np.testing.assert_array_equal(limit.holds(space.factored), mask, limit.expected)


def test_as_many_experts_as_models_have():
    space = library_space("grouped_gemm", "a100", m=64, experts=512, n=234, k=201)
    assert np.isfinite(estimate(space).time_s).all()
    program = space.definition.program(space.problem, dict(space.config(0)))
    plan, _, _ = lower_gpu(program, target_of(space.hardware))
    assert len(plan.launches) == 1


def test_knobs_without_use_for_a_problem_have_one_value():
    for form, values in (("nf4", [1, 5]), ("int4", [6, 5])):  # int4: products of few rows, too
        few, many = (
            library_space("dequant_gemm", "h100", m=m, n=4096, k=4096, zeros=False, format=form)
            for m in (2, 512)
        )
        assert [len(few.values[knob]) for knob in ("block_M", "splits")] == values
        assert [len(many.values[knob]) for knob in ("block_M", "splits")] == [6, 1]


def test_a_kernel_has_another_program_and_other_knobs_on_gpus():
    on_gpu = DEQUANT_GEMM.on("cuda")
    assert DEQUANT_GEMM.on("cpu") is DEQUANT_GEMM
    assert set(on_gpu.default_config("cuda")) == set(DEQUANT_GEMM.default_config("cuda"))
    assert "num_stages" in on_gpu.default_config("cuda")
    assert "num_stages" not in DEQUANT_GEMM.default_config("cpu")
    problem = DEQUANT_GEMM.parse_problem({"m": 1, "n": 64, "k": 128})
    assert on_gpu.program_digest(problem) != DEQUANT_GEMM.program_digest(problem)


E4Z, E4 = "float8_e4m3fnuz", "float8_e4m3fn"


@pytest.mark.parametrize(
    ("device", "a", "b", "read_as", "rate"),
    [
        ("mi300x", E4Z, "float8_e5m2fnuz", "float8_e4m3fnuz", "float8"),
        ("mi300x", E4, "float8_e5m2", "bfloat16", "bfloat16"),
        ("mi300x", E4Z, E4, "bfloat16", "bfloat16"),
        ("mi250", E4Z, E4Z, "bfloat16", "bfloat16"),
        ("mi300x", "float64", "float64", "float64", "float64"),
        ("mi250", "float64", "float64", "float64", "float64"),
        ("mi300x", "float32", "float32", "float32", "float32"),  # never as tf32
        ("mi250", "float32", "float32", "float32", "float32"),
    ],
)
def test_products_of_amd_run_at_the_rate_of_what_their_unit_reads(device, a, b, read_as, rate):
    profile = load_profile(device)
    total = "float64" if a == "float64" else "float32"
    func = gemm(4096, 4096, 4096, (128, 128, 32), 2, a, total, total, (False, True), 256, b=b)
    graph, columns = build(func), {"any": np.zeros(1, np.int64)}
    (product,) = products(graph.launches[0], columns, target_of(profile))
    assert product.is_tensor.all()
    assert product.dtype == read_as
    found = gpu_terms(graph, columns, profile)
    fastest = 2 * 4096**3 / profile.peak_flop_per_s[rate]
    efficiency = GpuConstants().tensor_efficiency
    np.testing.assert_allclose(found.resources["tensor"], fastest / efficiency)
    assert found.resources["fma"] == 0
    # Two by two wavefronts: each half of A and of B is converted twice.
    converted = 2 * 32 * (128 + 128) * (read_as != a)
    assert product.conversions == CONVERSION_OPERATIONS * converted
    assert (found.resources["work"] > found.resources["tensor"]) == (read_as != a)
    # The plan of the compiler says the same.
    plan, _ = lower_to_tir(func, target_of(profile))
    ((made,),) = (launch.gemms.values() for launch in plan.launches.values())
    assert made.kind == "mfma"
    assert made.warps == (2, 2)
    assert (made.converts_to or a) == read_as


def test_float32_and_float64_of_amd_stay_below_their_peaks():
    for device in ("mi250", "mi300x"):
        for dtype in ("float32", "float64"):
            sizes = {"m": 4096, "n": 4096, "k": 4096}
            types = dict.fromkeys(("dtype", "accum_dtype", "out_dtype"), dtype)
            space = SearchSpace.build(GEMM, GEMM.parse_problem(sizes | types), load_profile(device))
            found = estimate(space)
            rate = found.work_flop / found.time_s.min()
            peak = space.hardware.peak_flop_per_s[dtype]
            assert 0.4 * peak < rate < peak, (device, dtype)


# AMD's matrix instruction calculator (2ef9189): FLOPs/CU/cycle of the 16 x 16 instructions in use;
# of the MI355X, which it does not know, its data sheet's rates by clock and compute units.
FLOP_PER_CLOCK = {
    "mi250": {"float16": 1024, "bfloat16": 1024, "float32": 256, "float64": 256},
    "mi300x": {"float16": 2048, "bfloat16": 2048, "float8": 4096, "float32": 256, "float64": 256},
    "mi355x": {"float16": 4096, "bfloat16": 4096, "float8": 4096, "int8": 8192, "float32": 256,
               "float64": 128},
}  # fmt: skip


@pytest.mark.parametrize("device", FLOP_PER_CLOCK)
def test_peaks_of_amd_are_those_of_the_instructions_that_the_compiler_uses(device):
    profile = load_profile(device)
    for name, each in FLOP_PER_CLOCK[device].items():
        made = each * profile.cores * profile.clock_hz
        assert profile.peak_flop_per_s[name] == pytest.approx(made, rel=2e-3), name
