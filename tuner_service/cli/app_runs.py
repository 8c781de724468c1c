"""The command line, continued: ``tilecore run ...`` and ``tilecore node ...``."""

from __future__ import annotations

from typing import Annotated

import typer

from db.records import MAX_TIME_S, MAX_TRIALS
from tuner_service.settings import load_settings

run_app = typer.Typer(help="Shows and changes a tuning run, or a group of them.")
node_app = typer.Typer(help="Shows and drains machines of the cluster.")
Run = Annotated[str, typer.Argument(help="the id of a run, or of a group (g-...)")]
Node = Annotated[str, typer.Argument(help="the key of a node, or how it begins")]


@run_app.command()
def show(run: Run) -> None:
    """Print what a run has found so far."""
    from tuner_service.cli import record_commands

    record_commands.show_run(load_settings(), run)


@run_app.command()
def pause(run: Run) -> None:
    """Pause: what is under way ends and counts."""
    from tuner_service.cli import record_commands

    record_commands.change_run(load_settings(), run, "pause")


@run_app.command()
def resume(run: Run) -> None:
    """Let a paused run go on."""
    from tuner_service.cli import record_commands

    record_commands.change_run(load_settings(), run, "resume")


@run_app.command()
def cancel(run: Run) -> None:
    """Cancel; what was measured stays."""
    from tuner_service.cli import record_commands

    record_commands.change_run(load_settings(), run, "cancel")


@run_app.command()
def extend(
    run: Run,
    trials: Annotated[int, typer.Option(min=0, max=MAX_TRIALS, help="more screening trials")] = 0,
    seconds: Annotated[
        float, typer.Option(min=0, max=MAX_TIME_S, help="more seconds of screening")
    ] = 0.0,
) -> None:
    """Give an open or finished run a larger budget.

    One that an earlier version of the code measured begins again, with all of its budget.
    """
    from tuner_service.cli import record_commands

    record_commands.extend_run(load_settings(), run, trials=trials, seconds=seconds)


@run_app.command()
def amend(
    run: Run,
    priority: Annotated[
        int | None, typer.Option(min=1, max=1000, help="weight where runs share a device")
    ] = None,
    ceiling: Annotated[
        float | None, typer.Option(min=1.0, max=MAX_TIME_S, help="seconds of work at most")
    ] = None,
) -> None:
    """Change priority or ceiling of an open run."""
    from tuner_service.cli import record_commands

    record_commands.amend_run(load_settings(), run, priority=priority, ceiling_s=ceiling)


@node_app.command("list")
def list_nodes(
    lost: Annotated[bool, typer.Option("--lost", help="those that are gone, too")] = False,
    full: Annotated[bool, typer.Option("--full", help="whole keys, not how they begin")] = False,
) -> None:
    """List the machines of the cluster as its leader last saw them."""
    from tuner_service.cli import record_commands

    record_commands.nodes(load_settings(), with_lost=lost, in_full=full)


@node_app.command()
def drain(node: Node) -> None:
    """Give a node no new trials; what is under way on it ends."""
    from tuner_service.cli import record_commands

    record_commands.drain(load_settings(), node, back=False)


@node_app.command()
def undrain(node: Node) -> None:
    """Let a drained node work again."""
    from tuner_service.cli import record_commands

    record_commands.drain(load_settings(), node, back=True)
