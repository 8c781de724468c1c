"""Tile IR as JSON: every program that the front end can make, written, read back and told apart.

A document is one JSON object::

    {"schema": 1, "name": "main", "at": [0, 12, 5], "files": ["matmul.py"],
     "vars": [["bx", "int32"], ["by", "int32"], ["p", "int64", "float16"]],
     "buffers": [{"name": "A", "shape": [1024, 512], "dtype": "float16"}, ...],
     "params": [{"buffer": 0}, {"var": 2}], "attrs": {...}, "body": STATEMENT}

Vars and buffers are named by their place in the two lists, in the order in which the program first
shows them; a buffer may refer to buffers before it only, so that nothing can go in a circle.

Statements are objects: ``{"node": "copy", "src": REGION, "dst": REGION, "at": [0, 14, 9]}``; fields
that have their usual value are left out. ``at`` is file, line, column (and last column).
Regions are ``[buffer, [offsets], [extents]]``.

Expressions are literals (5 is an int32, true a bool, 0.5 a float32) or lists that begin with what
they are: ``["const", "int64", 5]``, ``["var", 0]``, ``["add", a, b]``, ``["not", a]``,
``["select", condition, a, b]``, ``["cast", "float16", a]``, ``["load", buffer, [indices]]``,
``["call", "exp", [a]]``, ``["reinterpret", "int32", a]``. Types follow from the operands; an
expression whose operands do not fit together is refused.

Two programs that mean the same, statement by statement, have the same ``digest``, wherever their
source stands. Names of files lose their folders, and are never opened by who reads a document.
"""

from __future__ import annotations

from tilecore.ir.document.checks import Limits
from tilecore.ir.document.reader import read
from tilecore.ir.document.writer import canonical_bytes, digest, write

__all__ = ["Limits", "canonical_bytes", "digest", "read", "write"]
