"""What a candidate of a program that came as data is run on and compared with.

Nobody sent a reference function. What the program computes for one config (the author's default,
where tile inference takes it) is what all configs must compute: the interpreter says it, on fresh
random inputs; where that takes longer than ORACLE_S, the compiled program of that config does. Then
all configs are compared with one another's like, and a fault that they all share stays unseen: the
detail of each measurement's check says which of the two it was.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import numpy as np

from recommender.workload import ProgramSource, Workload
from tilecore.errors import InvalidProblem, TileError
from tilecore.ir.analysis import marked_outputs, written_buffers
from tilecore.ir.expr import int_value
from tilecore.ir.nodes import Buffer, PrimFunc
from tilecore.ir.values.packed import packed
from tilecore.portable import PortableProgram, at_sizes, parse, unmeasurable
from tilecore.profiler import Tolerance
from tilecore.recommending import LOWERING
from tilecore.tile_config import KnobValue, TileConfig
from workers.correctness import Array, CheckReport, GuardedOutput
from workers.problem import Binder, Call

ORACLE_S = 10.0
GUARDED = (  # element types that can be poisoned
    "float16", "float32", "float64", "bfloat16", "int8", "int16", "int32", "int64", "uint8",
)  # fmt: skip
ORACLE, COMPILED = "the interpreter", "the compiled reference config"


def candidate(
    workload: Workload, source: ProgramSource, config: TileConfig
) -> tuple[PrimFunc, dict[str, KnobValue]]:
    """Return the program of a config, dynamic axes open, and the knobs of its lowering."""
    program = _program(source.document)
    own = {k: v for k, v in config.items() if k not in LOWERING}
    lowering = {**program.fixed, **{k: v for k, v in config.items() if k in LOWERING}}
    return program.program({**dict(workload.problem), **own}), lowering


@lru_cache(maxsize=4)
def _program(document: bytes) -> PortableProgram:
    return parse(document)


@dataclass(slots=True)
class PortableProblem:
    """Fresh inputs of one program at one problem, and what its reference config makes of them."""

    binder: Binder
    initial: list[Any]  # every argument before a run
    arguments: list[Any]  # every argument as kernels get it
    outputs: Mapping[int, GuardedOutput]  # those of them that only the program writes
    results: Sequence[int]
    expected: Sequence[Array]
    judge: str
    seed: int

    @classmethod
    def fresh(cls, workload: Workload, source: ProgramSource, binder: Binder) -> Self:
        """Return new random inputs with what the reference config makes of them.

        Raises:
            InvalidProblem: a parameter or an axis has no value (TC502).
        """
        seed = int(np.random.SeedSequence().generate_state(1)[0])
        whole, knobs = candidate(workload, source, source.reference)
        func = at_sizes(whole, dict(workload.problem))
        outputs = marked_outputs(func)
        written = {b.root for b in written_buffers(func.body)}
        results = outputs or tuple(i for i, p in enumerate(func.params) if p in written)
        initial = _arguments(func, dict(workload.problem), outputs, np.random.default_rng(seed))
        own = cls.binder_on_host(binder)
        expected, judge = _expected(whole, func, knobs, initial, results, own)
        if any(_has_nan(x) for x in expected) and outputs:  # it adds to what was there
            for i in outputs:
                initial[i] = np.zeros_like(initial[i])
            expected, judge = _expected(whole, func, knobs, initial, results, own)
        guarded = {
            i: GuardedOutput.allocate(initial[i].shape, str(initial[i].dtype))
            for i in outputs
            if _is_plain(initial[i])
        }
        arguments = [
            guarded[i].array if i in guarded else _copy(x) for i, x in enumerate(initial)
        ]  # fmt: skip
        return cls(binder, initial, arguments, guarded, results, expected, judge, seed)

    @classmethod
    def binder_on_host(cls, binder: Binder) -> Binder:
        """Return what binds kernels of this host's CPU."""
        return binder

    def bind(self, path: Path) -> Call:
        """Return a call of an artifact's kernel on all arguments."""
        return self.binder(path, self.arguments)

    def check(self, call: Call) -> CheckReport:
        """Run a kernel once on the first values and compare all that it writes."""
        for output in self.outputs.values():
            output.poison()
        for now, first in zip(self.arguments, self.initial, strict=True):
            if isinstance(now, np.ndarray):
                now[...] = first
        self.run(call)
        found = [self.arguments[i] for i in self.results]
        detail = Tolerance().difference(found, self.expected)
        if not all(output.is_intact for output in self.outputs.values()):
            detail = "an output: written beyond its ends"
        if not detail:
            return CheckReport(0.0)
        return CheckReport(np.inf, f"{detail} (by {self.judge}, input seed {self.seed})")

    def run(self, call: Call) -> None:
        """Run a kernel on the arguments."""
        call()

    def rival(self) -> Call | None:
        """Return None: nobody said what the same work would cost otherwise."""
        return None


def _arguments(
    func: PrimFunc, problem: Mapping[str, Any], outputs: Sequence[int], rng: np.random.Generator
) -> list[Any]:
    """Return a value for every parameter: random tensors, undefined outputs, integers."""
    unfit = unmeasurable(func)
    if unfit:
        raise InvalidProblem(
            field=unfit[0], expected="tensors and integers as parameters of a program to measure",
            found="an address or a fraction",
        )  # fmt: skip
    found: list[Any] = []
    for i, param in enumerate(func.params):
        if isinstance(param, Buffer):
            array = _random(param, rng)
            if i in outputs and array.dtype.kind not in "iub":
                array[...] = np.nan
            found.append(array)
        else:
            found.append(int(problem[param.name]))
    return found


def _random(param: Buffer, rng: np.random.Generator) -> Array:
    """Return a random tensor of a parameter: unit variance, or small integers."""
    extents = [int_value(e) for e in param.shape]
    steps = [int_value(e) for e in param.strides or ()]
    if None in extents or None in steps:
        raise InvalidProblem(
            field=param.name, expected="a shape that follows from the problem", found="another one"
        )
    shape = tuple(int(e) for e in extents if e is not None)
    if param.dtype.is_float:
        values = rng.standard_normal(shape, dtype=np.float32)
    else:
        values = rng.integers(-2 if param.dtype.is_signed else 0, 3, shape).astype(np.float32)
    if param.dtype.is_packed:
        if steps:
            raise InvalidProblem(field=param.name, expected="no strides", found="some")
        return np.asarray(packed(values, param.dtype))
    array = values.astype(param.dtype.numpy)
    return _strided(array, [s for s in steps if s is not None]) if steps else array


def _strided(values: Array, steps: Sequence[int]) -> Array:
    """Return values in memory with so many elements between neighbours along each axis."""
    if any(s < 0 for s in steps):
        raise InvalidProblem(field="strides", expected="none below 0", found=min(steps))
    span = 1 + sum((n - 1) * s for n, s in zip(values.shape, steps, strict=True) if n)
    memory = np.zeros(span, values.dtype)
    made = np.lib.stride_tricks.as_strided(
        memory, values.shape, [s * values.dtype.itemsize for s in steps]
    )
    made[...] = values
    return made


def _expected(
    whole: PrimFunc, func: PrimFunc, knobs: Mapping[str, KnobValue], initial: Sequence[Any],
    results: Sequence[int], binder: Binder,
) -> tuple[list[Array], str]:  # fmt: skip
    """Return what the reference config makes of the inputs, and who said so."""
    found = _interpreted(func, initial, results)
    if found is not None:
        return found, ORACLE
    arguments = [_copy(x) for x in initial]
    with tempfile.TemporaryDirectory(prefix="tilecore-") as folder:
        _compiled(whole, knobs, Path(folder), binder, arguments)()
    return [_copy(arguments[i]) for i in results], COMPILED


def _interpreted(
    func: PrimFunc, initial: Sequence[Any], results: Sequence[int]
) -> list[Array] | None:
    """Return what the interpreter makes of the inputs, None where it takes too long.

    It runs in a process of its own, which can be stopped whatever the program is at.

    Raises:
        TileError: the program has no meaning on these inputs.
    """
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    process = fork.Process(target=_interpret, args=(theirs, func, initial, results), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(ORACLE_S):
            return None
        found: list[Array] | TileError = ours.recv()
    except EOFError:  # it ran out of memory
        return None
    finally:
        process.kill()
        process.join()
        ours.close()
    if isinstance(found, TileError):
        raise found
    return found


def _interpret(
    answer: Connection[Any, Any], func: PrimFunc, initial: Sequence[Any], results: Sequence[int]
) -> None:
    from tilecore import interpreter

    arguments = [_copy(x) for x in initial]
    try:
        interpreter.run(func, *arguments)
    except TileError as error:
        answer.send(error)
    else:
        answer.send([arguments[i] for i in results])


def _compiled(
    whole: PrimFunc, knobs: Mapping[str, KnobValue], folder: Path, binder: Binder,
    arguments: Sequence[Any],
) -> Call:  # fmt: skip
    from tilecore.artifact import ArtifactStore

    try:
        from tilecore.compiler import compile
        from tilecore.lowering.cpu import lower  # noqa: F401  # TVM, which GPU nodes need not have
    except ModuleNotFoundError as error:
        raise InvalidProblem(
            field="problem", found="a larger one",
            expected=f"one that the interpreter runs within {ORACLE_S:.0f} s where no compiler is",
        ) from error  # fmt: skip
    return binder(compile(whole, "llvm", knobs, ArtifactStore(folder)).path, arguments)


def _copy(value: Any) -> Any:
    """Return a copy with the same strides."""
    if not isinstance(value, np.ndarray):
        return value
    if value.flags.c_contiguous:
        return value.copy()
    return _strided(value, [s // value.itemsize for s in value.strides])


def _is_plain(value: Array) -> bool:
    """Whether a guarded output can stand in for an array."""
    return value.flags.c_contiguous and value.dtype.name in GUARDED and value.size > 0


def _has_nan(value: Array) -> bool:
    return value.dtype.kind not in "iub" and bool(np.isnan(value.astype(np.float32)).any())
