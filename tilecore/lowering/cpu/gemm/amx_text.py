"""The functions in LLVM IR that work on tiles of AMX: setting up, moving sums, products."""

from __future__ import annotations

from tilecore.lowering.cpu import prefetch

LANES = 16
WORD_BYTES = 4
A_TILES, B_TILES = 4, 6  # 0 to 3 are sums
RELEASE = "tilecore_tile_release"

_TILE_MEMORY = "i8, ptr, i64"
DECLARATIONS = "\n".join(
    f"declare void @llvm.x86.{name}({arguments})"
    for name, arguments in {
        "ldtilecfg": "ptr", "tilerelease": "", "tilezero": "i8",
        **dict.fromkeys(("tileloadd64", "tileloaddt164", "tilestored64"), _TILE_MEMORY),
        **dict.fromkeys(("tdpbf16ps", "tdpbssd", "tdpbuud"), "i8, i8, i8"),
    }.items()
)  # fmt: skip
_HEAD = "define linkonce_odr hidden i32 @{name}({parameters}) {{"
RELEASE_TEXT = "\n".join(
    [_HEAD.format(name=RELEASE, parameters=""), "  call void @llvm.x86.tilerelease()",
     "  ret i32 0", "}"]
)  # fmt: skip


def configure_text(rows: int, groups: int) -> tuple[str, str]:
    """Return name and text of the function that says how large the tiles are."""
    sums, a, b = (rows, LANES), (rows, groups), (groups, LANES)
    tiles = [sums] * A_TILES + [a] * (B_TILES - A_TILES) + [b] * 2
    widths = [words * WORD_BYTES for _, words in tiles]
    layout = bytes([1, *[0] * 15])
    layout += b"".join(w.to_bytes(2, "little") for w in widths) + bytes(16)
    layout += bytes(height for height, _ in tiles) + bytes(8)
    name = f"tilecore_tiles_{rows}_{groups}"
    text = "".join(f"\\{byte:02X}" for byte in layout)
    body = [
        f'@{name}_layout = linkonce_odr hidden constant [64 x i8] c"{text}", align 64',
        _HEAD.format(name=name, parameters=""),
        f"  call void @llvm.x86.ldtilecfg(ptr @{name}_layout)",
        "  ret i32 0", "}",
    ]  # fmt: skip
    return name, "\n".join(body)


def move_text(name: str, what: str, tall: int, wide: int) -> str:
    """Return the function that clears, loads or stores tiles of sums."""
    if what == "zero":
        tiles = [2 * i + j for i in range(tall) for j in range(wide)]
        cleared = [f"  call void @llvm.x86.tilezero(i8 {tile})" for tile in tiles]
        return "\n".join([_HEAD.format(name=name, parameters=""), *cleared, "  ret i32 0", "}"])
    parameters = "ptr %p, i64 %stride" + ", i64 %rows" * (tall > 1)
    lines = [_HEAD.format(name=name, parameters=parameters)]
    if tall > 1:
        lines += [
            "  %below = mul i64 %rows, %stride",
            "  %p1 = getelementptr i8, ptr %p, i64 %below",
        ]
    for i in range(tall):
        row = "%p1" if i else "%p"
        for j in range(wide):
            tile = 2 * i + j
            at = row
            if j:
                at = f"%q{i}"
                lines.append(f"  {at} = getelementptr i8, ptr {row}, i64 {LANES * WORD_BYTES}")
            call = "tileloadd64" if what == "load" else "tilestored64"
            lines.append(f"  call void @llvm.x86.{call}(i8 {tile}, ptr {at}, i64 %stride)")
    return "\n".join([*lines, "  ret i32 0", "}"])


def products_text(
    name: str, instruction: str, tall: int, wide: int, lines_ahead: int, passing: str
) -> str:
    """Return the function that adds the products of all steps along K to the tiles of sums.

    A step brings ``lines_ahead`` cache lines to the L2 cache, ``apart`` bytes from each other.
    ``passing``: the operand ("a", "b" or "") that is loaded past the L1 cache, where the other one
    stays.
    """
    parameters = (
        "ptr %a, i64 %a_stride, i64 %rows, ptr %b, i64 %b_stride, i64 %groups, i64 %steps, "
        "ptr %ahead, i64 %apart, i64 %ahead_step"
    )
    load_a, load_b = (
        f"  call void @llvm.x86.tileload{'dt164' if which == passing else 'd64'}"
        "(i8 {}, ptr {}, i64 {})"
        for which in ("a", "b")
    )
    lines = [
        _HEAD.format(name=name, parameters=parameters),
        "entry:",
        "  %below = mul i64 %rows, %a_stride",
        f"  %a_step = mul i64 %groups, {WORD_BYTES}",
        "  %b_step = mul i64 %groups, %b_stride",
        "  %any = icmp sgt i64 %steps, 0",
        "  br i1 %any, label %loop, label %done",
        "loop:",
        "  %a0 = phi ptr [ %a, %entry ], [ %a_next, %loop ]",
        "  %b0 = phi ptr [ %b, %entry ], [ %b_next, %loop ]",
        "  %line0 = phi ptr [ %ahead, %entry ], [ %line_next, %loop ]",
        "  %left = phi i64 [ %steps, %entry ], [ %fewer, %loop ]",
        "  %a1 = getelementptr i8, ptr %a0, i64 %below",
        f"  %b1 = getelementptr i8, ptr %b0, i64 {LANES * WORD_BYTES}",
    ]
    for i in range(lines_ahead):
        if i:
            lines.append(f"  %line{i} = getelementptr i8, ptr %line{i - 1}, i64 %apart")
        lines.append("  " + prefetch.CALL.format(f"%line{i}", prefetch.L2))
    lines += [load_b.format(B_TILES + j, f"%b{j}", "%b_stride") for j in range(wide)]
    for i in range(tall):
        lines.append(load_a.format(A_TILES + i, f"%a{i}", "%a_stride"))
        for j in range(wide):
            tiles = f"i8 {2 * i + j}, i8 {A_TILES + i}, i8 {B_TILES + j}"
            lines.append(f"  call void @llvm.x86.{instruction}({tiles})")
    lines += [
        "  %line_next = getelementptr i8, ptr %line0, i64 %ahead_step",
        "  %a_next = getelementptr i8, ptr %a0, i64 %a_step",
        "  %b_next = getelementptr i8, ptr %b0, i64 %b_step",
        "  %fewer = sub i64 %left, 1",
        "  %more = icmp sgt i64 %fewer, 0",
        "  br i1 %more, label %loop, label %done",
        "done:",
        "  ret i32 0",
        "}",
    ]
    return "\n".join(lines)
