"""Write and read back every program that tests trace: a plugin of pytest.

    python -m pytest -p benchmarks.document_round_trip tests/tilecore

At the end it prints how many different programs came back with the same digest and the same text,
how many faulty ones were refused as the verifier refuses them, and every other outcome by test.
"""

import json
from collections import Counter

import tilecore.frontend.trace as trace
from tilecore.errors import TileError
from tilecore.ir.document import canonical_bytes, digest, read, write
from tilecore.ir.printer import format_func
from tilecore.ir.verifier import faults

_finish = trace.with_negative_indices  # the last step of every trace
seen: set[bytes] = set()
outcomes: Counter[str] = Counter()
strange: list[str] = []
current = ""


def _checked(func):
    made = _finish(func)
    document = canonical_bytes(write(made))
    if document in seen:
        return made
    seen.add(document)
    is_faulty = bool(faults(made))
    try:
        found, _ = read(json.loads(document))
    except TileError as error:
        fits = is_faulty and error.code != "TC205"
        outcome = "faulty, refused by the verifier" if fits else f"refused: {error.message}"
    else:
        same = digest(found) == digest(made) and format_func(found) == format_func(made)
        outcome = "faulty, accepted" if is_faulty else "same" if same else "different"
    outcomes[outcome if len(outcome) < 40 else "refused"] += 1
    if outcome not in ("same", "faulty, refused by the verifier"):
        strange.append(f"{current}: {outcome}")
    return made


trace.with_negative_indices = _checked


def pytest_runtest_setup(item):
    global current
    current = item.nodeid


def pytest_terminal_summary(terminalreporter):
    largest = max(map(len, seen), default=0)
    terminalreporter.write_line(
        f"documents: {len(seen)} programs, {dict(outcomes)}, the largest {largest} bytes"
    )
    for line in strange:
        terminalreporter.write_line(line)
