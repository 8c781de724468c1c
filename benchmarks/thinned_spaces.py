"""What a tuning run of a program finds whose space is thinned, with and without a look around.

    python benchmarks/thinned_spaces.py [--trials 48] [--seeds 3]

Of more than 200,000 combinations of values a table keeps every other one, and of these the 1024
most promising. For each seed two searches of equally many trials take turns, trial by trial, on
this machine: over the table alone, and over the table with what is around the fastest so far. In
the end what each found is timed by turns, with all cores, and their ratio printed.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import tilecore as tilelang
import tilecore.language as T
from db.migrate import open_database
from db.store import SqlStore
from recommender.measurement import Protocol
from recommender.portable_tracing import portable
from recommender.ports import MeasureRequest
from recommender.program_answers import program_session
from recommender.tuning import Budget
from recommender.workload import ProgramSource, Workload, kernel_name
from tilecore.advice import question_of
from tuner_service.wiring import compile_target, host_toolchain, profiled_host
from workers.pool import LocalPool, wait_for_all
from workers.program_desk import ProgramDesk

BY_8 = tuple(range(8, 521, 8))
TIMEOUT_S = 600.0


@tilelang.jit(out_idx=-1)
def product(M, N, K, block_M=64, block_N=64, block_K=64):
    """A product with a gelu on what it adds up."""

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float32"), B: T.Tensor((K, N), "float32"),
        C: T.Tensor((M, N), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M)) as (bx, by):
            a = T.alloc_shared((block_M, block_K), "float32")
            b = T.alloc_shared((block_K, block_N), "float32")
            c = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, block_K)):
                T.copy(A[by * block_M, k * block_K], a)
                T.copy(B[k * block_K, bx * block_N], b)
                T.gemm(a, b, c)
            for i, j in T.Parallel(block_M, block_N):
                c[i, j] = c[i, j] * T.sigmoid(1.702 * c[i, j])
            T.copy(c, C[by * block_M, bx * block_N])

    return main


@tilelang.jit(out_idx=-1)
def layers(M, N, K, F, block_M=32, block_F=64, block_K=64):
    """Two layers: the hidden one stays in a tile, a piece of it at a time."""

    @T.prim_func
    def main(
        X: T.Tensor((M, K), "float32"), V: T.Tensor((K, F), "float32"),
        W: T.Tensor((F, N), "float32"), Y: T.Tensor((M, N), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(M, block_M)) as by:
            x = T.alloc_shared((block_M, block_K), "float32")
            v = T.alloc_shared((block_K, block_F), "float32")
            w = T.alloc_shared((block_F, N), "float32")
            h = T.alloc_fragment((block_M, block_F), "float32")
            y = T.alloc_fragment((block_M, N), "float32")
            T.clear(y)
            for f in T.serial(T.ceildiv(F, block_F)):
                T.clear(h)
                for k in T.serial(T.ceildiv(K, block_K)):
                    T.copy(X[by * block_M, k * block_K], x)
                    T.copy(V[k * block_K, f * block_F], v)
                    T.gemm(x, v, h)
                for i, j in T.Parallel(block_M, block_F):
                    h[i, j] = T.max(h[i, j], 0.0)
                T.copy(W[f * block_F, 0], w)
                T.gemm(h, w, y)
            T.copy(y, Y[by * block_M, 0])

    return main


CASES = {
    "product": (product, {"M": 300, "N": 1200, "K": 900}),
    "layers": (layers, {"M": 300, "N": 200, "K": 300, "F": 900}),
}


def sessions(store, desk, program, problem, hardware, budget, seed):
    """Return the workload, and a session of each kind."""
    knobs = question_of(program, (), problem).knobs
    asked = question_of(program, (), problem, space=dict.fromkeys(knobs, BY_8))
    sent = portable(asked, hardware)
    document, sizes = sent.to_bytes(), sent.parse_problem({k: problem[k] for k in sent.sizes})
    found = desk.table(sent.digest, document, sizes, hardware, compile_target(hardware))
    source = ProgramSource(document, found.default)
    workload = replace(Workload.of(kernel_name(sent.digest), sizes), source=source)

    def look(centres, also):
        return desk.around(document, sizes, hardware, centres, also)

    common = {
        "store": store, "budget": budget, "seed": seed, "incumbents": (), "clock": lambda: 0.0,
        "program_digest": sent.digest, "toolchain_key": host_toolchain().key,
    }  # fmt: skip
    made = [program_session(workload, found, hardware, look=x, **common) for x in (None, look)]
    return workload, found, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    store, desk = SqlStore(open_database(f"sqlite:///{folder / 'log.db'}")), ProgramDesk()
    hardware = profiled_host(store)
    budget = Budget(max_trials=given.trials, time_limit_s=1e9)
    with LocalPool(hardware, artifact_dir=folder / "kernels") as pool:
        for case in given.cases:
            for seed in range(given.first, given.first + given.seeds):
                compare(store, desk, pool, case, hardware, budget, seed)
    desk.close()


def compare(store, desk, pool, case, hardware, budget, seed):
    """Run two searches by turns, and print what they found."""
    workload, table, pair = sessions(store, desk, *CASES[case], hardware, budget, seed)
    known = {}

    def screen(config):
        if config not in known:
            known.update({config: measure(pool, workload, [config], Protocol.SCREEN)[config]})
        return known[config]

    for _ in range(budget.max_trials):
        for session in pair:
            for proposal in session.ask(1):
                if proposal.protocol is Protocol.SCREEN:
                    session.tell(proposal, screen(proposal.config))
    best = [s.result().best.config for s in pair]
    times_s = measure(pool, workload, list(dict.fromkeys(best)), Protocol.CONFIRM)
    first, second = (times_s[config].time_s for config in best)
    screened = [s.result().best.time_s for s in pair]
    print(
        f"{case} seed {seed}: {table.legal:,} legal, {len(table)} in the table; "
        f"one thread {screened[0] * 1e3:.3f} -> {screened[1] * 1e3:.3f} ms "
        f"({screened[1] / screened[0]:.3f}); "
        f"all cores {first * 1e3:.3f} -> {second * 1e3:.3f} ms ({second / first:.3f})\n"
        f"    {best[0]}\n    {best[1]}",
        flush=True,
    )


def measure(pool, workload, configs, protocol):
    """Return the measurements of configs, timed by turns where there are several."""
    requests = [
        MeasureRequest(token=f"{c}", workload=workload, config=c, protocol=protocol)
        for c in configs
    ]
    found = wait_for_all(pool, requests, TIMEOUT_S)
    return {c: found[f"{c}"] for c in configs}


if __name__ == "__main__":
    main()
