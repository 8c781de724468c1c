"""Mechanisms of the analytic model of GPUs, each by what it does to times of an H200."""

from dataclasses import replace

import numpy as np
import pytest

from recommender.gpu.model import DEFAULT_GPU_CONSTANTS, gpu_terms
from recommender.gpu.products import products
from recommender.gpu.resources import block_resources, target_of
from recommender.hardware import load_profile
from recommender.space import SearchSpace
from tilecore import kernels
from tilecore.gpu_compiler import lower_gpu

H200 = load_profile("h200")


def space_of(name, **fields):
    definition = kernels.get(name).on("cuda")
    return SearchSpace.build(definition, definition.parse_problem(fields), H200)


def terms_of(space, *configs, hardware=H200, **constants):
    knobs = [k for k, values in space.values.items() if len(values) > 1]
    rest = {k: values[0] for k, values in space.values.items() if len(values) == 1}
    table = space.table([rest | dict(zip(knobs, config, strict=True)) for config in configs])
    found = replace(DEFAULT_GPU_CONSTANTS, **constants)
    return gpu_terms(space.graph, space.known(table), hardware, found)


def times_of(space, *configs, **constants):
    return np.add.reduce(list(terms_of(space, *configs, **constants).terms.values()))


SHORT = {"batch": 64, "m": 1024, "n": 1024, "k": 64, "dtype": "float16", "out_dtype": "float16",
         "transpose_b": True}  # fmt: skip
GROUPED = {"experts": 8, "m": 4096, "n": 1792, "k": 4096, "dtype": "bfloat16"}
IMAGES = {"batch": 32, "channels": 64, "height": 56, "width": 56, "filters": 64, "kernel": 3,
          "padding": 1, "dtype": "float16"}  # fmt: skip
BACKWARD = {"batch": 1, "heads": 16, "kv_heads": 16, "seq_q": 2048, "seq_kv": 2048, "dim": 64,
            "dtype": "bfloat16"}  # fmt: skip
LONG_ROWS = {"axis": "n", "m": 2048, "n": 32768, "dtype": "bfloat16"}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "fields", "config", "stays"),
    [
        (
            "grouped_gemm",
            GROUPED,
            (256, 192, 32, 4, 256),
            False,
        ),  # sums through a tile of their own
        ("grouped_gemm", GROUPED, (256, 192, 32, 6, 256), False),  # no room for it
        ("conv2d", IMAGES, (256, 64, 64, 4, 512), True),
        ("conv2d", IMAGES, (256, 64, 64, 5, 256), False),
        ("batched_gemm", SHORT, (192, 256, 64, 2, 384), True),
        ("batched_gemm", SHORT, (192, 256, 64, 1, 384), False),
    ],
)
def test_what_blocks_take_that_stay_or_store_under_a_condition(name, fields, config, stays):
    space, target = space_of(name, **fields), target_of(H200)
    knobs = dict(zip(space.values, config, strict=True))
    known, (launch,) = space.known(space.table([knobs])), space.graph.launches
    block = block_resources(launch, known, target, products(launch, known, target))
    (made,) = lower_gpu(space.definition.program(space.problem, knobs), target)[0].launches.values()
    assert block.shared_bytes[0] == made.shared_bytes
    assert block.stays[0] == stays


def test_blocks_that_stay_load_while_they_store():
    """One step each: nothing else hides the way in and out."""
    stays, leaves = times_of(
        space_of("batched_gemm", **SHORT), (192, 256, 64, 2, 384), (192, 256, 64, 1, 384)
    )
    assert stays < 0.75 * leaves  # on an H200 0.70


def test_tiles_of_one_expert_share_its_weights():
    space = space_of("grouped_gemm", **GROUPED)
    memory = terms_of(space, (64, 256, 32, 5, 128)).resources["memory"][0]
    once = space.definition.traffic_bytes(space.problem) / H200.bandwidth_bytes_per_s
    assert once < memory < 2 * once


def test_what_is_made_of_sums_behind_a_loop_is_hidden_by_no_product():
    fields = {"m": 4096, "n": 4096, "k": 1024, "dtype": "float16", "out_dtype": "float16"}
    config = (128, 256, 32, 6, 256)
    with_gelu, without = (
        space_of("gemm_epilogue", **fields, activation=name) for name in ("gelu", "none")
    )
    more = times_of(with_gelu, config)[0] - times_of(without, config)[0]
    work = terms_of(with_gelu, config).resources["work"][0]
    work -= terms_of(without, config).resources["work"][0]
    assert more > 0.7 * work > 0


def test_rows_that_begin_amid_lines_cost_more_the_shorter_they_are():
    def load(k, deep):
        space = space_of("gemm", m=4096, n=4096, k=k, dtype="bfloat16", transpose_b=True)
        return terms_of(space, (128, 256, deep, 4, 256)).resources["l2"][0]

    assert load(4096, 32) == pytest.approx(load(4096, 64), rel=0.01)
    assert load(4104, 64) > 1.3 * load(4096, 64)
    assert load(4104, 32) > 1.3 * load(4104, 64)


def test_a_device_begins_no_more_blocks_than_it_can():
    space = space_of("elementwise", m=4096, n=4096, dtype="float16")
    small, large = times_of(space, (1, 256, 64), (1, 1024, 64))
    assert small > 4096 * 16 * DEFAULT_GPU_CONSTANTS.block_interval_s
    assert small > 1.2 * large


def test_each_step_waits_for_what_warps_tell_each_other():
    """Slopes go through shared memory, parts of dQ by tiles: once per step."""
    space = space_of("attention_backward", **BACKWARD)
    steps = [2048 / rows for rows in (64, 32)]
    configs = [(rows, 64, 2, 128) for rows in (64, 32)]
    told = times_of(space, *configs)
    silent = times_of(space, *configs, exchange_clocks=0.0, store_latency_s=0.0)
    blocks = 16 * 2048 / 64 / H200.cores
    each = 2 * DEFAULT_GPU_CONSTANTS.exchange_clocks / H200.clock_hz
    each += DEFAULT_GPU_CONSTANTS.store_latency_s
    np.testing.assert_allclose(told - silent, np.ceil(blocks) * np.array(steps) * each, rtol=0.05)


def test_sums_that_blocks_add_to_again_stay_in_l2():
    space = space_of("attention_backward", **BACKWARD)
    memory = terms_of(space, (64, 64, 2, 128)).resources["memory"][0]
    workspace = 16 * 2048 * 64 * 4  # bytes; each of 32 blocks of keys adds to all of it
    assert memory < 16 * workspace / H200.bandwidth_bytes_per_s


def test_more_warps_fold_what_they_hold_more_often():
    space = space_of("reduction", **LONG_ROWS, op="max")
    few, many = terms_of(space, (1, 1024, 1, 64), (1, 1024, 1, 128)).resources["work"]
    assert 1.5 * few < many
    lane = terms_of(space_of("reduction", **LONG_ROWS | {"axis": "m"}, op="max"), (64, 64, 1, 64))
    assert lane.resources["work"][0] < few  # each lane has columns of its own
