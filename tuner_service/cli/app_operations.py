"""The command line, continued: ``tilecore db ...`` and ``tilecore model ...``, for operators."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from db.records import MAX_INTEGER, RetentionPolicy
from tuner_service.settings import load_settings

db_app = typer.Typer(help="Keeps the database small, and copies of it.", no_args_is_help=True)
model_app = typer.Typer(help="Shows, uploads and restores cost models.", no_args_is_help=True)
KEPT = RetentionPolicy()


@db_app.command()
def compact(
    keep_days: Annotated[
        float, typer.Option(min=0, max=36_500, help="everything younger stays")
    ] = KEPT.keep_days,
    keep_best: Annotated[
        int,
        typer.Option(
            min=1, max=100_000, help="so many of the fastest of each workload, device and toolchain"
        ),
    ] = KEPT.keep_best,
    keep_recent: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_INTEGER, help="so many of the newest of each workload and device"
        ),
    ] = KEPT.keep_recent,
    keep_training: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_INTEGER,
            help="so many of the newest OK ones of each kernel and family of devices",
        ),
    ] = KEPT.keep_training,
    above_mib: Annotated[
        int, typer.Option(min=0, max=MAX_INTEGER, help="only if the database is larger")
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only count")] = False,
    vacuum: Annotated[
        Literal["auto", "full", "off"],
        typer.Option(help="give space back; full (PostgreSQL) locks the tables meanwhile"),
    ] = "auto",
) -> None:
    """Remove measurements that no answer rests on; never a best. Failures stay counted by cause."""
    from tuner_service.cli import operations

    policy = RetentionPolicy(
        keep_days=keep_days, keep_best=keep_best, keep_recent=keep_recent,
        keep_training=keep_training, above_bytes=above_mib << 20,
    )  # fmt: skip
    operations.compact(load_settings(), policy, dry_run=dry_run, vacuum=vacuum)


@db_app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="where the copy goes; a file there is replaced")],
) -> None:
    """Copy the embedded database into a file, while others use it."""
    from tuner_service.cli import operations

    operations.back_up(load_settings(), file)


@db_app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="a copy by `tilecore db backup`, or a tilecore.db")],
) -> None:
    """Fill the empty database of the settings, PostgreSQL's too, with what a file has."""
    from tuner_service.cli import operations

    operations.restore(load_settings(), file)


@model_app.command("list")
def list_models(
    kernel: Annotated[str | None, typer.Option(help="only of this kernel")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="how many at most")] = 20,
) -> None:
    """List versions of cost models, newest first."""
    from tuner_service.cli import operations

    operations.list_models(load_settings(), kernel, limit=limit)


@model_app.command("upload")
def upload_model(
    file: Annotated[Path, typer.Argument(help="a model of XGBoost, UBJ or JSON")],
    kernel: Annotated[str, typer.Option(help="whose times it predicts")] = "gemm",
    devices: Annotated[str, typer.Option(help="cpu, or the architecture of GPUs: sm_90a")] = "cpu",
) -> None:
    """Store a model of XGBoost; it answers if it beats the incumbent and the lookup."""
    from tuner_service.cli import operations

    operations.upload_model(load_settings(), file, kernel, devices)


@model_app.command("activate")
def activate_model(
    model: Annotated[int, typer.Argument(min=1, max=MAX_INTEGER, help="the id of a version")],
) -> None:
    """Go back to a version that was active before."""
    from tuner_service.cli import operations

    operations.activate_model(load_settings(), model)
