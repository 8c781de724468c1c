"""Programs as users write them, on a CPU beside torch: one thread, medians, taken by turns.

    python -m benchmarks.everyday_programs [--json FILE] [--rounds 7] [--match REGEX]
        [--before FOLDER]

Weights of 4 bits with zero points, depthwise convolutions, histograms, the gradients of a layer
norm, pooling, look-ups, rotations, sums that run on; those of ``everyday_models.py``. Nothing is
tuned; every result is compared with torch's, in float64 where floats are computed. With
``--before`` what another checkout compiled (``--keep FOLDER``, run there) takes its turns, too.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import everyday_models
from benchmarks.against_torch import one_thread, options, timed, write
from benchmarks.everyday_case import Case
from benchmarks.everyday_kernels import (
    argmax,
    depthwise_nchw,
    depthwise_nhwc,
    embedding,
    gelu,
    group_norm,
    histogram,
    int4_rows,
    int4_words,
    layer_norm_gradients,
    max_pool,
    rotary_halves,
    rotary_pairs,
    running_sums,
    transposed,
    upsampled,
)
from tilecore import runtime
from tilecore.artifact import Artifact, ArtifactStore
from tilecore.compiler import compile

NAMES = "names.json"


def int4_cases() -> Iterator[Case]:
    """Yield products with weights of 4 bits; torch has them in float32, or in its own packing."""
    n, k = 4096, 4096
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    codes = torch.randint(0, 16, (n, k), dtype=torch.int32)
    packed = (codes[:, ::2] | (codes[:, 1::2] << 4)).to(torch.uint8)
    words = (codes.T.reshape(k // 8, 8, n) << shifts[None, :, None]).sum(1, dtype=torch.int32)
    for m, block_m, group in ((1, 1, 128), (1, 1, 32), (16, 16, 128), (64, 64, 128)):
        scales, zeros = torch.rand(n, k // group) / 8, torch.randint(0, 16, (n, k // group)).float()
        wide = [x.repeat_interleave(group, 1) for x in (scales, zeros)]
        weights, a = (codes - wide[1]) * wide[0], torch.randn(m, k)
        points = zeros.T.int().reshape(k // group, n // 8, 8) << shifts
        exact = [a.double() @ weights.double().T]
        own = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 2)
        pairs = torch.stack((scales, (8 - zeros) * scales), 2).transpose(0, 1).contiguous()
        given = [a, packed, scales, zeros]
        label = f"group {group}, M={m}"

        def dense(a: Any = a, weights: Any = weights) -> Any:
            return a @ weights.T

        rows = int4_rows(m, n, k, group, block_m)
        yield Case(f"int4 rows, {label}, dense", rows, given, dense, exact)
        halves = int4_rows(m, n, k, group, block_m, "bfloat16")
        given = [a.bfloat16(), packed, scales, zeros]
        ours = [given[0].double() @ weights.bfloat16().double().T]

        rounded, pairs = weights.bfloat16(), pairs.bfloat16()

        def dense16(a: Any = given[0], weights: Any = rounded) -> Any:
            return a @ weights.T

        def int4(a: Any = given[0], own: Any = own, group: int = group, pairs: Any = pairs) -> Any:
            return torch.ops.aten._weight_int4pack_mm_for_cpu(a, own, group, pairs)

        yield Case(f"int4 rows, bfloat16, {label}, dense", halves, given, dense16, ours)
        yield Case(f"int4 rows, bfloat16, {label}, torch's int4", halves, given, int4, ours)
        given = [a, words, scales.T.contiguous(), points.sum(2, dtype=torch.int32)]
        columns = int4_words(m, n, k, group, block_m)
        yield Case(f"int4 words, {label}, dense", columns, given, dense, exact)


def depthwise_cases() -> Iterator[Case]:
    """Yield convolutions as in MobileNets."""
    conv = torch.nn.functional.conv2d
    for c, size, stride in ((144, 56, 1), (144, 56, 2), (384, 14, 1), (32, 112, 1), (64, 75, 2)):
        x, f = torch.randn(1, c, size, size), torch.randn(c, 1, 3, 3)
        exact = conv(x.double(), f.double(), stride=stride, padding=1, groups=c)
        last = x.permute(0, 2, 3, 1).contiguous()

        def rival(x: Any = x, f: Any = f, s: int = stride, c: int = c) -> Any:
            return conv(x, f, stride=s, padding=1, groups=c)

        x_last = x.contiguous(memory_format=torch.channels_last)
        f_last = f.contiguous(memory_format=torch.channels_last)
        yield Case(
            f"depthwise NHWC {size}x{size}x{c}, stride {stride}",
            depthwise_nhwc(1, size, size, c, stride),
            [last, f[:, 0].permute(1, 2, 0).contiguous()],
            lambda x=x_last, f=f_last, r=rival: r(x, f),
            [exact.permute(0, 2, 3, 1)],
        )
        yield Case(
            f"depthwise NCHW {c}x{size}x{size}, stride {stride}",
            depthwise_nchw(1, c, size, size, stride),
            [x, f[:, 0].contiguous()],
            rival,
            [exact],
        )


def histogram_cases() -> Iterator[Case]:
    """Yield histograms of integers."""
    n = 1 << 20
    for bins in (64, 256, 4096):
        x = torch.randint(0, bins, (n,), dtype=torch.int32)
        exact = [torch.bincount(x, minlength=bins)]
        for shared in (True, False):
            yield Case(
                f"histogram, {bins} bins, {'shared' if shared else 'global'}",
                histogram(n, bins, 8192, shared),
                [x],
                lambda x=x, b=bins: torch.bincount(x, minlength=b),
                exact,
                True,
            )


def layer_norm_cases() -> Iterator[Case]:
    """Yield the gradients of layer norms."""
    for m, n, rows in ((4096, 768, 16), (4096, 768, 4), (2048, 4096, 8), (2048, 1000, 16)):
        x, dy, g, b = torch.randn(m, n), torch.randn(m, n), torch.rand(n), torch.randn(n)
        mean, rstd = x.mean(1), (x.var(1, unbiased=False) + 1e-5).rsqrt()

        def gradients(x: Any, dy: Any, g: Any, mean: Any, rstd: Any, b: Any = b, n: int = n) -> Any:
            return torch.ops.aten.native_layer_norm_backward(
                dy, x, [n], mean[:, None], rstd[:, None], g, b, [True, True, True]
            )

        given = [x, dy, g, mean, rstd]
        exact = list(gradients(*(t.double() for t in given), b=b.double()))
        yield Case(
            f"layer norm gradients {m}x{n}, blocks of {rows}",
            layer_norm_gradients(m, n, rows),
            [dy, x, g, mean, rstd],
            lambda given=given, f=gradients: f(*given),
            exact,
            True,
        )


def look_up_cases() -> Iterator[Case]:
    """Yield look-ups and rotations of heads."""
    table, at = torch.randn(32000, 1024), torch.randint(0, 32000, (2048,), dtype=torch.int32)
    yield Case(
        "embedding 2048x1024",
        embedding(2048, 32000, 1024, 8),
        [at, table],
        lambda t=table, a=at: torch.nn.functional.embedding(a, t),
        [table[at]],
    )
    x = torch.randn(512, 32, 128)
    c, s = torch.rand(512, 64), torch.rand(512, 64)

    def halves(x: Any, c: Any, s: Any) -> Any:
        c, s = (torch.cat((t, t), 1)[:, None] for t in (c, s))
        return x * c + torch.cat((-x[..., 64:], x[..., :64]), -1) * s

    yield Case(
        "rotary halves 512x32x128",
        rotary_halves(512, 32, 128),
        [x, c, s],
        lambda a=(x, c, s): halves(*a),
        [halves(x, c, s)],
    )

    def pairs(x: Any, c: Any, s: Any) -> Any:
        a, b = x[..., ::2], x[..., 1::2]
        c, s = c[:, None], s[:, None]
        return torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)

    yield Case(
        "rotary pairs 512x32x128",
        rotary_pairs(512, 32, 128),
        [x, c, s],
        lambda a=(x, c, s): pairs(*a),
        [pairs(x, c, s)],
    )


def row_cases() -> Iterator[Case]:
    """Yield programs that go along rows."""
    f = torch.nn.functional
    x, w, b = torch.randn(4, 256, 28 * 28), torch.randn(256), torch.randn(256)
    yield Case(
        "group norm 4x256x28x28",
        group_norm(4, 256, 784, 32),
        [x.view(4, 32, 8, 784), w.view(32, 8), b.view(32, 8)],
        lambda x=x, w=w, b=b: f.group_norm(x, 32, w, b),
        [f.group_norm(x.double(), 32, w.double(), b.double()).view(4, 32, 8, 784)],
    )
    x = torch.randn(1024, 2048)
    yield Case(
        "running sums 1024x2048",
        running_sums(1024, 2048, 4),
        [x],
        lambda x=x: torch.cumsum(x, 1),
        [torch.cumsum(x.double(), 1)],
    )
    for n in (4096, 3001):
        x, b = torch.randn(1024, n), torch.randn(n)
        yield Case(
            f"bias and gelu 1024x{n}",
            gelu(1024, n, 16, 256),
            [x, b],
            lambda x=x, b=b: f.gelu(x + b),
            [f.gelu((x + b).double())],
        )
    x = torch.randn(1024, 4096)
    yield Case(
        "argmax 1024x4096",
        argmax(1024, 4096, 4),
        [x],
        lambda x=x: torch.argmax(x, 1),
        [torch.argmax(x, 1)],
    )


def plane_cases() -> Iterator[Case]:
    """Yield programs over planes and matrices."""
    f = torch.nn.functional
    x = torch.randn(1, 64, 112, 112)
    yield Case(
        "max pool 64x112x112",
        max_pool(1, 64, 112, 112),
        [x],
        lambda x=x: f.max_pool2d(x, 3, 2, 1),
        [f.max_pool2d(x, 3, 2, 1)],
    )
    for m in (2048, 2000):
        x = torch.randn(m, m)
        yield Case(
            f"transposed stores {m}x{m}",
            transposed(m, m, 64, 64),
            [x],
            lambda x=x: x.T.contiguous(),
            [x.T],
        )
    x = torch.randn(1, 64, 56, 56)
    yield Case(
        "nearest upsampling 64x56x56",
        upsampled(1, 64, 56, 56),
        [x],
        lambda x=x: f.interpolate(x, scale_factor=2),
        [f.interpolate(x, scale_factor=2)],
    )


def cases() -> Iterator[Case]:
    """Yield all cases."""
    yield from int4_cases()
    yield from depthwise_cases()
    yield from histogram_cases()
    yield from layer_norm_cases()
    yield from look_up_cases()
    yield from row_cases()
    yield from plane_cases()
    yield from everyday_models.cases()


def outputs_of(case: Case) -> list[torch.Tensor]:
    """Return memory for the outputs of a program, as it has to be before the first call."""
    types = [p.dtype for p in case.program.params][len(case.inputs) :]
    outs = [
        torch.zeros(e.shape, dtype=getattr(torch, str(t)))
        for e, t in zip(case.exact, types, strict=True)
    ]
    for out, start in zip(outs, case.begun, strict=False):
        out.copy_(start)
    return outs


def call_of(case: Case, artifact: Artifact) -> Callable[[], None]:
    """Return a call of a compiled program, whose results were compared with the exact ones."""
    kernel, outs = runtime.load(artifact), outputs_of(case)

    def call() -> None:
        if case.zeroed:
            for out in outs[-2:]:
                out.zero_()
        kernel(*case.inputs, *outs)

    call()
    for out, exact in zip(outs, case.exact, strict=True):
        error = (out.double() - exact.double()).abs().max() / exact.double().abs().max()
        assert error.item() < case.tolerance, (case.label, error)
    return call


def main() -> None:
    """Time every program and its rival, print, write."""
    parser = options(__doc__)
    parser.add_argument("--keep", type=Path, help="compile only, into this folder")
    parser.add_argument("--before", type=Path, help="a folder that another checkout kept")
    args = parser.parse_args()
    one_thread()
    torch.manual_seed(0)
    names = json.loads((args.before / NAMES).read_text()) if args.before else {}
    kept, found = {}, []
    with tempfile.TemporaryDirectory() as folder:
        store = ArtifactStore((args.keep or Path(folder)).absolute())
        for case in cases():
            if not re.search(args.match, case.label):
                continue
            artifact = compile(case.program, store=store)
            kept[case.label] = str(artifact.path)
            if args.keep is not None:
                continue
            calls = {"ours": call_of(case, artifact), "torch": case.rival}
            if case.label in names:
                calls["before"] = call_of(case, Artifact.open(Path(names[case.label])))
            found.append(timed(case.label, calls, args.rounds, 45))
    if args.keep is not None:
        (args.keep / NAMES).write_text(json.dumps(kept))
    write(found, args.json)


if __name__ == "__main__":
    main()
