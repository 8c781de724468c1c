"""Memory of large outputs is asked for in large pages; that of others as it comes."""

import mmap
from pathlib import Path

import pytest
import torch

import tilecore
from tilecore.runtime import pages

pytestmark = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a system without such pages"
)


def is_asked_for(address: int) -> bool:
    """Return whether the system was told to give the memory at an address in large pages."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            first, last = (int(end, 16) for end in head.split("-"))
            inside = first <= address < last
        elif inside and head == "VmFlags:":
            return "hg" in line.split()
    raise AssertionError(f"no memory at {address:#x}")


@pytest.mark.parametrize(
    ("rows", "dtype", "is_large"),
    [
        (8192, torch.float32, True),
        (8191, torch.float32, False),
        (16384, torch.bfloat16, True),
        (8193, torch.bfloat16, False),
        (1, torch.float32, False),
    ],
)
def test_large_outputs_are_asked_for_in_large_pages(rows, dtype, is_large, monkeypatch):
    """Of others nothing is asked; what NumPy asked of the same memory before stays."""
    asked, advise = [], pages._advise()

    def noted(address, size_bytes):
        asked.append((address, size_bytes))
        return advise(address, size_bytes)

    monkeypatch.setattr(pages, "_advise", lambda: noted)
    x = torch.randn(rows, 1024).to(dtype)
    found = tilecore.compute(lambda x: x * 2)(x)
    torch.testing.assert_close(found, x * 2)
    assert bool(asked) == is_large
    for address, size_bytes in asked:
        assert address % mmap.PAGESIZE == size_bytes % mmap.PAGESIZE == 0
        end = found.data_ptr() + found.nbytes
        assert found.data_ptr() <= address < address + size_bytes <= end
        assert is_asked_for(address)


def test_a_system_without_large_pages(monkeypatch):
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    pages._advise.cache_clear()
    try:
        assert pages._advise() is None
        x = torch.randn(9000, 1024)
        torch.testing.assert_close(tilecore.compute(lambda x: x * 2)(x), x * 2)
    finally:
        pages._advise.cache_clear()
