"""Programs as data: size and speed of documents, what damage does to them, what REST takes.

    python -m benchmarks.programs_as_data [--mutants N] [--json FILE]

Documents are those of the library's kernels and of the programs of tests/recommender/user_programs.
Times are medians of REPEATS in one process (reading: JSON, checks and verifier; service: one
client, one process, no coordinator, answers from memory left out).
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from fastapi.testclient import TestClient

from recommender.hardware import load_profile
from recommender.portable_tracing import portable
from tests.recommender import user_programs as programs
from tests.tilecore.document_faults import damaged, flipped, generator, parsed
from tilecore import kernels
from tilecore.advice import question_of
from tilecore.errors import TileError
from tilecore.ir.document import canonical_bytes, read, write
from tilecore.ir.verifier import faults
from tuner_service.app import create_app
from tuner_service.settings import Settings
from tuner_service.wiring import detected_host, host_toolchain

REPEATS = 9
GEMM = {"M": 4096, "N": 4096, "K": 4096}
SENT = {
    "matmul": (programs.matmul, GEMM),
    "attention": (programs.attention, {"B": 4, "H": 16, "S": 2048, "D": 128}),
    "branching (variants)": (programs.branching, GEMM),
}


def median_ms(call):
    """Return the median time of a call in ms."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1e3)
    return round(statistics.median(times), 2)


def library():
    """Return the programs of the library at their default configs."""
    found = {}
    for name, definition in kernels.KERNELS.items():
        needed = {f.name: 1024 for f in definition.fields if f.default is None}
        problem = definition.parse_problem(needed)
        found[name] = definition.program(problem, dict(definition.default_config()))
    return found


def mutants(documents, count):
    """Return what became of damaged documents, and the longest time of one."""
    outcomes, longest_s = Counter(), 0.0
    texts = [canonical_bytes(d) for d in documents]
    for seed in range(count):
        rng, which = generator(seed), seed % len(documents)
        document = (damaged(documents[which], rng) if seed % 4
                    else parsed(flipped(texts[which], rng)))  # fmt: skip
        began = time.perf_counter()
        try:
            found, _ = read(document)
            assert not faults(found)
            outcomes["accepted"] += 1
        except TileError as error:
            outcomes[error.code] += 1
        longest_s = max(longest_s, time.perf_counter() - began)
    return {"outcomes": dict(outcomes), "longest_ms": round(longest_s * 1e3, 1)}


def service(folder):
    """Return how long requests about programs take."""
    rows = {}
    app = create_app(Settings(data_dir=folder, executor="local"))
    with TestClient(app) as client:
        for name, (program, sizes) in SENT.items():
            began = time.perf_counter()
            made = portable(question_of(program, (), sizes, target="h100"), load_profile("h100"))
            trace_ms = (time.perf_counter() - began) * 1e3
            text, times = made.to_bytes(), []
            for n in range(REPEATS + 1):
                began = time.perf_counter()
                client.post("/v1/programs", content=text).raise_for_status()
                problem = {k: v + 128 * n for k, v in sizes.items() if k in made.sizes}
                asked = {"program": made.digest, "problem": problem, "hardware": "h100"}
                posted = time.perf_counter()
                client.post("/v1/recommendations", json=asked).raise_for_status()
                times.append((posted - began, time.perf_counter() - posted))
            rows[name] = {
                "bytes": len(text), "variants": len(made.variants), "sizes": list(made.sizes),
                "trace_and_check_ms": round(trace_ms, 1),
                "first_post_ms": round(times[0][0] * 1e3, 1),
                "recommendation_ms": round(statistics.median(t for _, t in times[1:]) * 1e3, 1),
            }  # fmt: skip
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    funcs = library()
    documents = {name: write(func) for name, func in funcs.items()}
    rows = {}
    for name, document in documents.items():
        text = canonical_bytes(document)
        rows[name] = {
            "bytes": len(text),
            "write_ms": median_ms(lambda name=name: canonical_bytes(write(funcs[name]))),
            "read_ms": median_ms(lambda text=text: read(json.loads(text))),
        }
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "date": datetime.now(UTC).date().isoformat(),
            "command": f"python -m benchmarks.programs_as_data --mutants {arguments.mutants}",
            "host": detected_host().name, "cores": detected_host().cores,
            "toolchain": str(host_toolchain()), "repeats": REPEATS, "documents": rows,
            "mutants": mutants(list(documents.values()), arguments.mutants),
            "service": service(Path(folder)),
        }  # fmt: skip
    text = json.dumps(found, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
