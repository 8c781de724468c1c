"""Fixtures of the compiler's tests."""

import numpy as np
import pytest

from tilecore import runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.interpreter import run


@pytest.fixture(scope="session", autouse=True)
def own_threads():
    """Threads of torch spin after a call, on cores that another test process needs.

    test_thread_pools.py shares them.
    """
    runtime.share_threads(False)


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory):
    return ArtifactStore(tmp_path_factory.mktemp("artifacts"))


@pytest.fixture
def run_both(artifacts):
    """Run a program compiled and interpreted on copies; both must give what is expected."""

    def check(func, inputs, outputs, expected=None, **tolerance):
        bounds = {"rtol": 1e-5, "atol": 1e-5, **tolerance}
        interpreted = [np.copy(o) for o in outputs]
        run(func, *[np.copy(i) for i in inputs], *interpreted, seed=3)
        compiled = [np.copy(o) for o in outputs]
        runtime.load(compile(func, store=artifacts))(*inputs, *compiled)
        for position, (got, want) in enumerate(zip(compiled, interpreted, strict=True)):
            np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), **bounds)
            if expected is not None:
                np.testing.assert_allclose(got.astype(np.float64), expected[position], **bounds)
        return compiled

    return check
