"""Modules that are imported once something of them is used, in the process that compiles too."""

from __future__ import annotations

import importlib
import inspect
import sys

import pytest

from workers.compile_worker import compile_zygote
from workers.later import later
from workers.sandbox import Returned, Sandbox
from workers.toolbox import TilecoreToolbox


def test_a_module_is_imported_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xml.dom.minidom", waiting := later("xml.dom.minidom"))
    assert importlib.import_module("xml.dom.minidom") is waiting
    inspect.getsource(later)  # looks at all modules
    assert not hasattr(waiting, "__spec_of_nobody__")
    assert sys.modules["xml.dom.minidom"] is waiting
    assert waiting.parseString("<a/>").documentElement.tagName == "a"
    assert sys.modules["xml.dom.minidom"] is not waiting
    with pytest.raises(AttributeError, match="no_such_name"):
        waiting.no_such_name  # noqa: B018  looking it up is the test


def test_a_package_has_its_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "xml.sax.saxutils", raising=False)
    monkeypatch.setitem(sys.modules, "xml.sax", later("xml.sax"))
    assert importlib.import_module("xml.sax.saxutils").escape("<") == "&lt;"


class Compiler:
    """Says what the process that compiles has imported."""

    def has_relax(self) -> tuple[bool, bool]:
        return "tvm" in sys.modules, "tvm.relax.expr" in sys.modules

    def use_relax(self) -> str:
        from tvm import relax

        return relax.Function.__module__


def test_what_compiling_does_not_need_waits() -> None:
    zygote = compile_zygote(TilecoreToolbox())
    sandbox = Sandbox(zygote, Compiler)
    try:
        assert sandbox.call("has_relax", timeout_s=60.0) == Returned((True, False))
        assert sandbox.call("use_relax", timeout_s=60.0) == Returned("tvm.relax.expr")
    finally:
        sandbox.close()
        zygote.close()
