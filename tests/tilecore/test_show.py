"""kernel.show(): the program after every stage of its compilation."""

import pytest

import tilecore as tilelang
import tilecore.language as T
from tilecore.errors import TypeMismatch


@pytest.fixture(scope="module")
def kernel():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(4, threads=16) as b:
            i = T.get_thread_binding()
            Y[b * 16 + i] = X[b * 16 + i] * 2.0

    return tilelang.compile(main, target="avx2")


def test_every_stage_has_its_text(kernel) -> None:
    assert "func main(X: float32[64]" in kernel.show("source")
    assert kernel.show("serialize_threads") != kernel.show("source")
    assert "def main" in kernel.show("tir")
    assert "define" in kernel.show("llvm")
    assert "ymm" in kernel.show("asm")
    assert "zmm" not in kernel.show("asm")


def test_all_stages_at_once(kernel) -> None:
    shown = kernel.show()
    names = [line.split()[2] for line in shown.splitlines() if line.startswith("# --- ")]
    assert names == [
        "source", "scaled_products", "spell_halves", "guard_tiles", "safe_quotients",
        "hoist_views", "serialize_threads", "vectorize_threads", "drop_stages", "settle",
        "variables", "guarded_loads", "converting_copies", "fold_clear", "live_rows",
        "split_tiles", "join_blocks", "own_tiles", "repeated_math", "rows_in_turn", "few_rows",
        "upright", "inference", "tir",
    ]  # fmt: skip
    assert shown.count("(unchanged)") == 19


@pytest.mark.parametrize(
    ("target", "stage", "word"),
    [("h100", "cuda", "__global__"), ("mi300x", "asm", "s_endpgm"), ("mi300x", "llvm", "define")],
)
def test_the_code_of_gpus_has_its_text(target, stage, word) -> None:
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(2, threads=32) as b:
            for i in T.Parallel(32):
                Y[b * 32 + i] = X[b * 32 + i] * 2.0

    kernel = tilelang.compile(main, target=target)
    assert word in kernel.show(stage)
    assert "func main(X: float32[64]" in kernel.show("source")
    assert word not in kernel.show()
    with pytest.raises(TypeMismatch, match=rf"source, .*{stage}.*found 'launches'"):
        kernel.show("launches")


def test_an_unknown_stage_is_refused(kernel) -> None:
    with pytest.raises(TypeMismatch, match=r"source, scaled_products, spell_halves.*found 'ptx'"):
        kernel.show("ptx")
