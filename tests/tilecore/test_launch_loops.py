"""Loops around kernel launches, and slices of tensors whose size is known at run time only."""

import time

import numpy as np
import pytest

import tilecore as tilelang
import tilecore.language as T
from tilecore.errors import (
    AssertionFailed,
    InvalidConfig,
    ScopeError,
    ShapeMismatch,
    TypeMismatch,
    UnknownTarget,
)
from tilecore.target import parse_target


def test_launches_in_a_loop_run_one_after_the_other(run_both):
    n = 70

    @T.macro
    def step(B, s, is_last):
        stride = 1 << s
        with T.Kernel(T.ceildiv(n, 32)) as b:
            kept = T.alloc_shared((32,), "float32")
            T.copy(B[b * 32], kept)
            for i in T.Parallel(32):
                if is_last:
                    B[b * 32 + i] = -kept[i]
                else:
                    B[b * 32 + i] = kept[i] * 2 + stride

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 32)) as b:
            for i in T.Parallel(32):
                B[b * 32 + i] = A[b * 32 + i]
        for s in range(1, 6, 2):
            step(B, s, s == 5)
        for s, t in T.grid(2, 2):
            with T.Kernel(1):
                B[s] = B[s] + t

    a = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    expected = -((a * 2 + 2) * 2 + 8)
    expected[:2] += 1
    run_both(main, [a], [np.zeros_like(a)], [expected])


@pytest.mark.parametrize("jumps", [False, True])
def test_a_loop_around_launches_runs_a_known_number_of_times(jumps):
    n = T.dynamic("n")
    with pytest.raises(ScopeError, match="a loop whose iterations are not known"):

        @T.prim_func
        def main(A: T.Tensor((n,), "float32")):
            for i in T.serial(4 if jumps else n):
                with T.Kernel(1):
                    A[i] = 1.0
                if jumps:
                    break


def test_a_tile_tells_the_size_of_a_slice_that_is_not_known(run_both):
    m, tile = 5, 8

    @tilelang.jit
    def steps(A):
        n = T.dynamic("n")
        A: T.Tensor[[n], T.int32]
        B = T.empty([n], T.int32)
        with T.Kernel(1):
            first = T.alloc_fragment((tile,), "int32")
            second = T.alloc_fragment((tile,), "int32")
            T.copy(A[: n - 1], first)
            T.copy(A[1:], second)
            for i in T.Parallel(tile):
                second[i] = second[i] - first[i]
            B[0] = 0
            T.copy(second, B[1:])
        return B

    a = np.random.default_rng(1).integers(0, 99, m).astype(np.int32)
    np.testing.assert_array_equal(np.asarray(steps(a)), np.concatenate([[0], np.diff(a)]))
    run_both(steps.get_tir(a), [a], [np.zeros(m, np.int32)], [[0, *np.diff(a)]])


def test_slices_of_known_sizes_must_fit():
    with pytest.raises(ShapeMismatch, match=r"the source has \(5,\)"):

        @T.prim_func
        def main(A: T.Tensor((9,), "int32")):
            with T.Kernel(1):
                tile = T.alloc_fragment((8,), "int32")
                T.copy(A[0:5], tile)


def test_a_slice_tells_its_type_and_its_box():
    @T.prim_func
    def main(A: T.Tensor((9, 8), "int32")):
        with T.Kernel(1):
            box = A[2:5, 4:]
            assert box.dtype == "int32"
            assert [(int(r.min), int(r.extent)) for r in box.region] == [(2, 3), (4, 4)]
            T.clear(box)


@pytest.mark.parametrize("by_thread", [False, True])
def test_an_access_that_leaves_its_tile_under_a_condition_stops_the_program(by_thread):
    """It wrote over other memory where the condition held."""

    @tilelang.jit
    def widen(A, n: int):
        m = T.dynamic("m")
        A: T.Tensor[[m], T.float32]
        B = T.empty([n], T.float32)
        with T.Kernel(1, threads=128):
            tile = T.alloc_fragment((8, n), "float32")
            T.clear(tile)
            if by_thread:
                T.evaluate(T.get_thread_binding())
            for _step in T.serial(m):
                if A[0] > 0:
                    for i, j in T.Parallel(16, n):
                        tile[i, j] = tile[i, j] + A[0]
                for i in T.Parallel(16):
                    if i < 8:
                        tile[i, 0] = tile[i, 0] + 1
            T.copy(tile[7, :], B)
        return B

    found = np.asarray(widen(np.zeros(3, np.float32), n=5))
    np.testing.assert_array_equal(found, [3, 0, 0, 0, 0])
    with pytest.raises(AssertionFailed, match="index of `tile`, axis 0: expected 0 to 7, found 0"):
        widen(np.ones(3, np.float32), n=5)


def test_a_loop_of_very_many_turns_compiles_at_once():
    """Once the compiler walked through all its numbers, three times."""
    turns = (1 << 31) - 1

    @T.prim_func
    def main(A: T.Tensor((1,), "float32"), B: T.Tensor((1,), "float32")):
        with T.Kernel(1):
            for i in T.serial(turns):
                for j in T.serial(turns, 0, -2):
                    if i + j > 7:
                        B[0] = A[0]

    began = time.process_time()
    tilelang.compile(main, out_idx=[1], target="llvm")
    assert time.process_time() - began < 30


@pytest.mark.parametrize("target", ["llvm", "h100"])
@pytest.mark.parametrize("loop", [T.serial, T.Parallel])
def test_a_loop_that_no_counter_counts_is_refused_at_its_line(loop, target):
    """Once hours, or a ValueError of TVM's."""
    turns = 1 << 40

    @T.prim_func
    def main(A: T.Tensor((1,), "float32"), B: T.Tensor((1,), "float32")):
        with T.Kernel(1):
            for _ in loop(turns):
                B[0] = A[0]

    with pytest.raises(TypeMismatch, match="int32 can count to") as caught:
        tilelang.compile(main, out_idx=[1], target=target)
    assert caught.value.span is not None


def test_a_buffer_is_no_condition_of_a_loop():
    """Once the program was traced for ever."""

    def program():
        @T.prim_func
        def main(A: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                kept = T.alloc_shared((4,), "float32")
                while kept:
                    T.clear(kept)

    with pytest.raises(TypeMismatch, match="found the buffer `kept`") as caught:
        program()
    assert caught.value.span is not None


@pytest.mark.parametrize("target", ["llvm", "h100"])
@pytest.mark.parametrize("blocks", [-4, 1 << 40])
def test_a_grid_that_cannot_be_is_refused_at_its_line(target, blocks):
    """On CPUs once a ZeroDivisionError, or a ValueError of TVM's."""

    @T.prim_func
    def main(A: T.Tensor((1,), "float32"), B: T.Tensor((1,), "float32")):
        with T.Kernel(blocks):
            B[0] = A[0]

    with pytest.raises(InvalidConfig, match="expected 0 to 2147483647 blocks") as caught:
        tilelang.compile(main, out_idx=[1], target=target)
    assert caught.value.span is not None


@pytest.mark.parametrize("target", ["", " "])
def test_a_target_without_a_name_is_none(target):
    with pytest.raises(UnknownTarget, match="expected one of llvm"):
        parse_target(target)
