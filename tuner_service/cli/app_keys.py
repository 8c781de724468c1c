"""The command line, continued: ``tilecore keys ...``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tuner_service.settings import load_settings

key_app = typer.Typer(help="API keys of the REST service.", no_args_is_help=True)
Role = Literal["read", "tune", "admin"]


@key_app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="whom or what the key is for")],
    role: Annotated[Role, typer.Option(help="each may do what those before it may")] = "read",
    expires_in_days: Annotated[
        int | None, typer.Option(min=1, max=3650, help="lifetime; default: for ever")
    ] = None,
) -> None:
    """Make an API key and print it; nothing can tell it again."""
    from tuner_service.cli import operations

    operations.create_key(load_settings(), name, role, expires_in_days=expires_in_days)


@key_app.command("list")
def list_all() -> None:
    """List the API keys."""
    from tuner_service.cli import operations

    operations.list_keys(load_settings())


@key_app.command("revoke")
def revoke(
    prefix: Annotated[str, typer.Argument(help="as `tilecore keys list` shows it")],
) -> None:
    """Refuse an API key from now on."""
    from tuner_service.cli import operations

    operations.revoke_key(load_settings(), prefix)
