"""Kernels that a program gives as CUDA C++: T.CUDASourceCodeKernel."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from tilecore.errors import ScopeError, ShapeMismatch, SourceUnavailable, TypeMismatch
from tilecore.frontend.builder import current
from tilecore.frontend.loops import integer
from tilecore.ir.cuda_source import kernels_of
from tilecore.ir.expr import ExprLike, int_value
from tilecore.ir.nodes import SourceLaunch
from tilecore.language.kernel import DEFAULT_THREADS, cluster_of

__all__ = ["CUDASourceCodeKernel"]
ENTRY = "main_kernel"
# By these TileLang tells a text from the name of a file that is missing.
MARKS = ("\n", "__global__", 'extern "C"', "#include")
ENDINGS = (".cu", ".cuh", ".cuda", ".cpp", ".cc", ".c")


def CUDASourceCodeKernel(
    *blocks: ExprLike,
    threads: ExprLike | Sequence[ExprLike] | None = None,
    source_code_or_path: str | os.PathLike[str],
    entry_name: str | None = ENTRY,
    cluster_dims: Any = None,
    prelude: str | None = None,
) -> None:
    """Launch a kernel of CUDA C++ text, on NVIDIA's GPUs; other targets refuse it (TC302).

    It is passed the addresses of all tensors of the program in the order of their names, then the
    symbols of their shapes and strides in the order of theirs; its ``extern "C"`` definition must
    take just these. It has no dynamic shared memory. What it does is not checked.

    Args:
        blocks: number of blocks along x, y, z; without any, one block.
        threads: per block (default 128), along x, y, z.
        source_code_or_path: the text, or a file of it.
        entry_name: the kernel; None: the only one that there is.
        cluster_dims: blocks of a cluster along x, y, z (sm_90 and later).
        prelude: text that goes before the source.

    Raises:
        ShapeMismatch: more than 3 axes (TC201).
        TypeMismatch: no text, no such kernel, or one of other parameters (TC202).
        SourceUnavailable: there is no such file (TC103).
        ScopeError: it stands inside a T.Kernel, a while or a branch (TC104).
    """
    builder = current()
    if builder.find("kernel", "parallel", "while", "then", "else") is not None:
        raise ScopeError(
            message="T.CUDASourceCodeKernel stands inside a T.Kernel, a while or a branch",
            hint="it is a launch of its own: write it at the top of the program",
        )
    if builder.loose is not None:
        raise builder.loose
    source = _source_of(source_code_or_path)
    if prelude is not None:
        source = f"{prelude}\n{source}"
    count = DEFAULT_THREADS if threads is None else threads
    shape = tuple(count) if isinstance(count, (tuple, list)) else (count,)
    for what, axes in (("grid", blocks), ("threads", shape)):
        if len(axes) > 3:
            raise ShapeMismatch(
                what=f"{what} of T.CUDASourceCodeKernel", expected="1 to 3 axes", found=len(axes)
            )
    extents = tuple(integer(t, "number of threads") for t in shape)
    if any(size is not None and size < 1 for size in map(int_value, extents)):
        raise TypeMismatch(expected="at least 1 thread along each axis", found=repr(threads))
    cluster = cluster_of(cluster_dims)
    builder.emit(
        SourceLaunch(
            grid=tuple(integer(b, "number of blocks") for b in blocks or (1,)),
            threads=extents,
            source=source,
            entry=_entry_of(source, entry_name),
            cluster=cluster if any(size > 1 for size in cluster) else (),
            span=builder.span,
        )
    )


def _source_of(given: str | os.PathLike[str]) -> str:
    """Return a text, or what stands in the file that it names."""
    text = os.fspath(given) if isinstance(given, (str, os.PathLike)) else given
    if not isinstance(text, str) or not text.strip():
        raise TypeMismatch(expected="CUDA source, or the path of a file of it", found=repr(given))
    path = os.path.expanduser(text)
    if os.path.isfile(path):
        with open(path, encoding="utf-8") as file:
            return file.read()
    if not any(mark in text for mark in MARKS) and (os.sep in text or text.endswith(ENDINGS)):
        raise SourceUnavailable(
            name=text, hint="there is no such file; a path is taken from the working directory"
        )
    return text


def _entry_of(source: str, name: str | None) -> str:
    """Return the kernel's name: the given one, or that of the only kernel."""
    if name is None:
        names = [k.name for k in kernels_of(source)]
        if len(names) != 1:
            raise TypeMismatch(
                expected="entry_name, where the CUDA source has not just one kernel",
                found=f"None. Available entries: {', '.join(names) or 'none'}",
            )
        return names[0]
    if not isinstance(name, str) or not name.strip():
        raise TypeMismatch(expected="entry_name: the name of a kernel", found=repr(name))
    return name
