"""What was decided for a GPU, in words: the lines of ``kernel.explain()``."""

from __future__ import annotations

from tilecore.inference.gpu.plan import GemmPlan, GpuLaunchPlan
from tilecore.inference.gpu.products.matrix_units import TF32_CUT, TF32_ROUNDED
from tilecore.ir.nodes import ChunkCopy, ClusterCopy, Copy
from tilecore.ir.visitor import walk


def launch_in_words(plan: GpuLaunchPlan) -> str:
    """Return the decisions about a launch."""
    lines = [f"threads per block: {plan.thread_count}; shared memory: {plan.shared_bytes} B"]
    for buffer, held in plan.fragments.items():
        lines.append(f"{buffer.name}: {held.slots} registers a thread; {held.describe()}")
    for buffer, layout in plan.shared.items():
        order = f"swizzled by {layout.swizzle_bytes} B" if layout.swizzle_bytes else "row-major"
        copies = f", {layout.stages} stages" if layout.stages > 1 else ""
        lines.append(f"{buffer.name}: shared, {order}, {layout.bytes} B{copies}")
    for buffer, tile in plan.tensor_tiles.items():
        last = tile.column + tile.columns - 1
        lines.append(f"{buffer.name}: tensor memory, columns {tile.column} to {last}")
    lines += [product_in_words(product) for product in plan.gemms.values()]
    for pipeline in plan.pipelines.values():
        names = ", ".join(tile.name for tile in pipeline.tiles)
        how = "registers" if pipeline.in_registers else "cp.async"
        how = "TMA, by a warpgroup of its own" if pipeline.boxes else how
        lines.append(f"pipelined: {names} in {pipeline.stages} stages ({how})")
        if pipeline.overlap is not None:
            sums = pipeline.overlap.last.c.buffer.name
            lines.append(f"overlapped: {sums} of an iteration is summed up while the next runs")
    lines += _moved_as_matrices(plan)
    lines += _stored(plan)
    if plan.updates:
        names = ", ".join(f"{u.there.buffer.name} ({u.op})" for u in plan.updates.values())
        lines.append(f"updated by TMA: {names}")
    if plan.loads:
        tiles = dict.fromkeys(s.dst.buffer.name for s in plan.loads if isinstance(s, Copy))
        lines.append(f"loaded by TMA on barriers of the program: {', '.join(tiles)}")
    if plan.launch.cluster:
        lines.append(f"clusters of {'x'.join(map(str, plan.launch.cluster))} blocks")
    sent = [s.copy.dst.buffer.name for s in plan.multicasts if isinstance(s, ClusterCopy)]
    sent += [c.dst.buffer.name for p in plan.pipelines.values() for c in p.copies if p.group(c)]
    if sent:
        lines.append(f"loaded by TMA for several blocks: {', '.join(dict.fromkeys(sent))}")
    copied = [s.src.buffer.name for s in walk(plan.launch.body) if isinstance(s, ChunkCopy)]
    if copied:
        names = ", ".join(dict.fromkeys(copied))
        lines.append(f"factors copied to tensor memory by the unit of products: {names}")
    lines.append(f"barriers: {len(plan.barriers) + len(plan.ends)}")
    return "\n".join([*lines, *plan.notes])


def _stored(plan: GpuLaunchPlan) -> list[str]:
    """Return what boxes are stored, and what warpgroups do by themselves."""
    found = []
    if plan.stores:
        names = ", ".join(s.src.buffer.name for s in plan.stores if isinstance(s, Copy))
        found.append(f"stored by TMA: {names}")
    if plan.own_rows is not None:
        name = plan.own_rows.stored.src.buffer.name
        found.append(f"{name}: each warpgroup stores its own rows and waits for no other one")
    return found


def product_in_words(plan: GemmPlan) -> str:
    """Return how a product runs."""
    each = 2 if plan.stmt.pairs_of else 1  # elements along K of what the plan counts
    m, n, k = plan.shape[0], plan.shape[1], plan.shape[2] * each
    size = (plan.size[0], plan.size[1], plan.size[2] * each)
    how = "fma" if plan.kind == "fma" else f"{plan.kind}.m{m}n{n}k{k}"
    if plan.kind == "scaled":
        kind = plan.stmt.pairs_of or plan.stmt.a.dtype
        how = f"mma.m{m}n{n}k{k} of {kind} with factors (.block_scale)"
    if plan.kind == "tcgen05" and plan.stmt.factors:
        how += f" of {plan.stmt.pairs_of or plan.stmt.a.dtype} with factors (.block_scale)"
    if plan.kind == "quads":
        how = "mma.m8n8k4 by four quad pairs of a warp"
    how += f" ({plan.reason})" if plan.reason else ""
    if plan.is_tf32:
        cut = plan.kind != "mma"
        error = TF32_CUT if cut else TF32_ROUNDED
        how += (
            f" of tf32 (operands {'cut' if cut else 'rounded'} to 11 significant bits, relative"
            f" error up to {error:.1e} each; float32_products='exact' keeps all 24)"
        )
    if plan.converts_to:
        how += f" of {plan.converts_to} (which holds all numbers of A and B)"
    if plan.sums == "float16":
        how += " summed up in float16"
    rows, columns = plan.warps
    unit = "warpgroups" if plan.kind == "wgmma" else "warps"
    who = "one thread" if plan.kind == "tcgen05" else f"{rows}x{columns} {unit}"
    who += " for two blocks" if plan.stmt.in_pair else ""
    return (
        f"gemm {'x'.join(map(str, size))}: {how}, {who}; "
        f"A from {plan.a.source}, B from {plan.b.source}"
    )


def _moved_as_matrices(plan: GpuLaunchPlan) -> list[str]:
    """Return which tiles matrices come from and go to."""
    nests = [n for n in plan.nests.values() if n.matrices is not None]
    moved = [n.points.accesses[n.matrices.access] for n in nests if n.matrices is not None]
    found = []
    for how, is_store in (("loaded by ldmatrix", False), ("stored by stmatrix", True)):
        names = dict.fromkeys(a.buffer.name for a in moved if a.is_store is is_store)
        found += [f"{how}: {', '.join(names)}"] if names else []
    return found
