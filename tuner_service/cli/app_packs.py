"""The command line, continued: ``tilecore pack`` and ``tilecore import``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner_service.settings import load_settings

MEBIBYTE = 1 << 20


def pack(
    folder: Annotated[Path, typer.Argument(help="of the pack; a second one is FOLDER-2")],
    kernel: Annotated[str, typer.Option(help="a kernel of the library")] = "gemm",
    fields: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="a field of the problem (repeatable)"),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="pack every workload of a .txt, .csv or .json file")
    ] = None,
    target: Annotated[
        str, typer.Option("--target", "--hardware", help='a GPU: h100, h200, "emulated h200", ...')
    ] = "h200",
    configs: Annotated[int, typer.Option(min=1, max=10_000, help="of a workload at most")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="of what is drawn at random")] = 0,
    limit_mib: Annotated[
        int, typer.Option(min=2, max=65_536, help="of one pack; what is more becomes another")
    ] = 56,
) -> None:
    """Compile candidates for a GPU that nothing can reach, with what measures them there."""
    from tuner_service import questions
    from tuner_service.cli import packing

    packing.pack(
        load_settings(), folder, kernel, questions.assigned("--set", fields or ()), file,
        target=target, configs=configs, seed=seed, limit_bytes=limit_mib * MEBIBYTE,
    )  # fmt: skip


def import_results(
    results: Annotated[
        list[Path], typer.Argument(help="files that packs have written (.jsonl, .jsonl.gz)")
    ],
) -> None:
    """Store what packs have measured as measurements of their device."""
    from tuner_service.cli import packing

    packing.import_results(load_settings(), results)
