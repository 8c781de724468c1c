"""From a Python function to code that builds tile IR when it runs."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from tilecore.errors import SourceSpan, SourceUnavailable, UnsupportedSyntax
from tilecore.frontend.rewriter import Rewritten, rewrite

FACTORY = "__tilecore_factory"
BODY = "__tilecore_body"  # not the function's own name, by which it may refer to its macro


@dataclass(frozen=True, slots=True)
class TracedCode:
    """The rewritten code of one function: compiled once, bound to cells and globals per trace."""

    code: CodeType
    spans: tuple[SourceSpan, ...]
    free_names: tuple[str, ...]
    definition: ast.FunctionDef

    def bind(self, fn: FunctionType, scope: Any) -> Callable[..., Any]:
        """Return a function that runs the rewritten body of ``fn`` against ``scope``."""
        cells: dict[str, Any] = {}
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            try:
                cells[name] = cell.cell_contents
            except ValueError:
                continue  # a name of the enclosing function that is not bound yet
        namespace: dict[str, Any] = {}
        exec(self.code, fn.__globals__, namespace)
        values = [cells.get(name, _Unbound(name)) for name in self.free_names]
        bound: Callable[..., Any] = namespace[FACTORY](scope, *values)
        return bound


@dataclass(frozen=True, slots=True)
class _Unbound:
    """Stands for a name of the enclosing function that had no value when the kernel was traced."""

    name: str


@lru_cache(maxsize=1024)
def _load(code: CodeType, name: str, file: str) -> TracedCode:
    # `file` is part of the key: equal functions of two files have equal code objects.
    definition = parse_function(code, name)
    rewritten: Rewritten = rewrite(definition, file)
    rewritten.definition.name = BODY
    factory = ast.FunctionDef(
        name=FACTORY,
        args=_arguments(["__tb", *code.co_freevars]),
        body=[rewritten.definition, ast.Return(ast.Name(BODY, ast.Load()))],
        decorator_list=[],
    )
    module = ast.Module([factory], [])
    ast.copy_location(factory, definition)
    ast.fix_missing_locations(module)
    compiled = compile(module, file, "exec", dont_inherit=True)
    return TracedCode(compiled, rewritten.spans, code.co_freevars, definition)


def load(fn: FunctionType) -> TracedCode:
    """Return the rewritten code of ``fn``.

    Raises:
        SourceUnavailable: its source cannot be read (TC103).
        UnsupportedSyntax: it uses Python that has no meaning in a tile program (TC101).
    """
    return _load(fn.__code__, fn.__code__.co_name, fn.__code__.co_filename)


def parse_function(code: CodeType, name: str) -> ast.FunctionDef:
    """Return the AST of a function with the line numbers and columns of its file.

    Raises:
        SourceUnavailable: its source cannot be read (TC103).
        UnsupportedSyntax: it is a coroutine (TC101).
    """
    try:
        lines, first = _lines(code)
        # Under `if 1:` an indented definition parses with its columns unchanged.
        tree = ast.parse("if 1:\n" + "".join(lines)) if lines[0][:1].isspace() else None
        shift = first - 2 if tree is not None else first - 1
        tree = tree or ast.parse("".join(lines))
    except (OSError, TypeError, SyntaxError, IndentationError) as error:
        raise SourceUnavailable(name=name) from error
    ast.increment_lineno(tree, shift)
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef) and node.name == name:
            place = SourceSpan(code.co_filename, node.lineno, node.col_offset + 1)
            raise UnsupportedSyntax(expected="`def`", found="`async def`", span=place)
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name]
    if not found:
        raise SourceUnavailable(name=name)
    return found[0]


def _lines(code: CodeType) -> tuple[list[str], int]:
    """Return the lines of a function and the number of the first.

    ``inspect`` looks for the module of a function among all that are loaded, which takes most of
    its time: it is asked where a file alone does not tell (a zip file, a file that has changed).
    """
    linecache.checkcache(code.co_filename)
    lines, first = linecache.getlines(code.co_filename), code.co_firstlineno
    if 0 < first <= len(lines) and lines[first - 1].lstrip().startswith(("def ", "async ", "@")):
        return inspect.getblock(lines[first - 1 :]), first
    return inspect.getsourcelines(code)


def _arguments(names: list[str]) -> ast.arguments:
    return ast.arguments(
        posonlyargs=[], args=[ast.arg(n) for n in names], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
