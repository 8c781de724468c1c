"""Random products of few rows: in joined blocks (passes/wide_blocks.py) they compute what they do.

Numbers are small and whole, so that every bit must be the same: of blocks as the program has them,
of joined ones on one thread and on two, and of the oracle.
"""

from __future__ import annotations

import runpy

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import tilecore.language as T
from tests.tilecore.few_rows_generator import Product, products
from tilecore import runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.interpreter import run
from tilecore.passes import wide_blocks


def check(product: Product, tmp_path) -> None:
    file = tmp_path / f"product{abs(hash(product.source))}.py"
    file.write_text(product.source)
    func = runpy.run_path(str(file), {"T": T})["main"]
    found, cores = [], runtime.num_threads()
    for least in (1, 1 << 30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wide_blocks, "LEAST_BYTES", least)
            patch.setattr(wide_blocks, "PIECES_BYTES", (256, 512))
            kernel = runtime.load(compile(func, store=ArtifactStore(tmp_path / str(least))))
        for threads in (1, 2) if least == 1 else (1,):
            runtime.set_num_threads(threads)
            found.append([x.copy() for x in product.outputs])
            kernel(*product.inputs, *found[-1])
    runtime.set_num_threads(cores)
    for others in found[:-1]:
        for one, other in zip(others, found[-1], strict=True):
            np.testing.assert_array_equal(one, other, product.source)
    wanted = [x.copy() for x in product.outputs]
    run(func, *(x.copy() for x in product.inputs), *wanted)
    for one, other in zip(found[0], wanted, strict=True):
        atol = 0.0 if product.is_exact else float(np.abs(other).max(initial=0.0)) / 32
        np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=product.source)


FIXTURES = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.mark.exhaustive
@settings(max_examples=3, suppress_health_check=FIXTURES)
@given(product=products())
def test_joined_blocks_compute_what_blocks_do(product, tmp_path) -> None:
    check(product, tmp_path)


@pytest.mark.exhaustive
@settings(max_examples=120, suppress_health_check=FIXTURES)
@given(product=products())
def test_more_joined_blocks_compute_what_blocks_do(product, tmp_path) -> None:
    check(product, tmp_path)
