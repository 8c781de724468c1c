"""The command line: ``tilecore tune | recommend | serve | ...``, on the same code as REST."""

from __future__ import annotations

import codecs
import errno
import io
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from db.records import MAX_INTEGER, MAX_SEED, MAX_TIME_S, MAX_TRIALS
from recommender.measurement import MeasureStatus, Protocol
from tilecore.errors import TileError
from tilecore.tile_config import MOST_RETURNED
from tuner_service.cli import app_dispatch as cli_dispatch
from tuner_service.cli import app_packs as cli_packs
from tuner_service.cli.app_keys import key_app
from tuner_service.cli.app_operations import db_app, model_app
from tuner_service.cli.app_runs import node_app, run_app
from tuner_service.cli.program_arguments import is_program, refuse_for_library
from tuner_service.errors import InvalidRequest
from tuner_service.settings import load_settings

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
CLOSED_PIPE = 128 + signal.SIGPIPE
app = typer.Typer(
    help="Tunes tile kernels for this machine and recommends tile configs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"tilecore {version('tilecore')}")
        raise typer.Exit


@app.callback()
def _of_all_commands(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="show it and end"),
    ] = False,
) -> None: ...


app.add_typer(key_app, name="keys")
app.add_typer(run_app, name="run")
app.add_typer(node_app, name="node")
app.add_typer(db_app, name="db")
app.add_typer(model_app, name="model")
app.command("dispatch")(cli_dispatch.dispatch)
app.command("pack")(cli_packs.pack)
app.command("import")(cli_packs.import_results)

M = Annotated[int | None, typer.Option("--m", "-m", help="rows of C")]
N = Annotated[int | None, typer.Option("--n", "-n", help="columns of C")]
K = Annotated[int | None, typer.Option("--k", "-k", help="length of the sums")]
OnlyM = Annotated[
    int | None, typer.Option("--m", "-m", min=1, max=MAX_INTEGER, help="only with so many rows")
]
OnlyN = Annotated[
    int | None, typer.Option("--n", "-n", min=1, max=MAX_INTEGER, help="only with so many columns")
]
OnlyK = Annotated[
    int | None, typer.Option("--k", "-k", min=1, max=MAX_INTEGER, help="only with so long sums")
]
Dtype = Annotated[str | None, typer.Option(help="element type of the inputs")]
Fields = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="another field of the problem"),
]
Threads = Annotated[int, typer.Option(help="cores to use; 0: all")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
RayAddress = Annotated[
    str | None, typer.Option(help="HOST:PORT of a Ray cluster whose nodes measure")
]
Executor = Annotated[
    Literal["auto", "ray", "local"] | None, typer.Option(help="who runs the workers")
]
State = Literal[
    "QUEUED", "RUNNING", "PAUSED", "WAITING_FOR_HARDWARE", "SUCCEEDED", "FAILED", "CANCELLED"
]
Priority = Annotated[int, typer.Option(min=1, max=1000, help="weight where runs share a device")]
Ceiling = Annotated[
    float | None,
    typer.Option(min=1.0, max=MAX_TIME_S, help="end with what there is after so many seconds"),
]
CreatedBy = Annotated[
    str | None, typer.Option(help="only what the API key with this name asked for")
]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="how many at most")]
Fixed = Annotated[
    list[str] | None,
    typer.Option("--fixed", metavar="KNOB=VALUE", help="of a program: a knob that stays"),
]
Space = Annotated[
    list[str] | None,
    typer.Option("--space", metavar="KNOB=A,B,...", help="of a program: values to choose from"),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--size", metavar="NAME=VALUE", help="of a program: a size known at its call"),
]
Service = Annotated[
    str | None, typer.Option(help="URL of the service that is to answer, or whose workers measure")
]
KernelOrProgram = Annotated[
    str, typer.Argument(help="a kernel of the library, or path/program.py:function")
]


@app.command()
def tune(
    kernel: KernelOrProgram = "gemm",
    m: M = None,
    n: N = None,
    k: K = None,
    dtype: Dtype = None,
    fields: Fields = None,
    threads: Threads = 0,
    trials: Annotated[
        int | None, typer.Option(min=1, max=MAX_TRIALS, help="screening trials at most")
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(min=1.0, max=MAX_TIME_S, help="seconds of screening")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="of the search")] = 0,
    force: Annotated[bool, typer.Option("--force", help="tune again")] = False,
    file: Annotated[
        Path | None, typer.Option(help="tune every workload of a .txt, .csv or .json file")
    ] = None,
    ceiling: Ceiling = None,
    priority: Priority = 10,
    target: Annotated[
        str | None,
        typer.Option("--target", "--hardware", help="a device; default: this host's processor"),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="queue it even where nobody offers the device yet")
    ] = False,
    executor: Executor = None,
    ray_address: RayAddress = None,
    fixed: Fixed = None,
    space: Space = None,
    size: Sizes = None,
    service: Service = None,
) -> None:
    """Tune a kernel or program for a device; a second call answers from the database."""
    from tuner_service.cli import commands
    from tuner_service.jobs import Effort

    settings = load_settings(executor=executor, ray_address=ray_address)
    effort = Effort(
        max_trials=trials or settings.max_trials, time_limit_s=time_limit or settings.time_limit_s,
        ceiling_s=ceiling, priority=priority, seed=seed, waits=wait,
        on_this_host=settings.measures_here,
    )  # fmt: skip
    given = {"m": m, "n": n, "k": k, "dtype": dtype}
    if file is None and is_program(kernel):
        from tuner_service.cli import programs

        asked = programs.Asked(
            program=kernel, given=programs.parse_given(given, fields or ()), fixed=fixed or (),
            space=space or (), sizes=size or (), threads=threads, hardware=target,
            service=service,
        )  # fmt: skip
        programs.tune(settings, asked, effort, force=force)
        return
    refuse_for_library(kernel, fixed=fixed or (), space=space or (), size=size or ())
    problem = commands.parse_problem(given, fields or ())
    if service is not None:
        from tuner_service.cli import library_by_service

        if file is not None:
            raise InvalidRequest(message="expected --file or --service, found both")
        question = {"kernel": kernel, "problem": problem, "threads": threads, "hardware": target}
        library_by_service.tune(settings, service, question, effort)
    elif file is None:
        commands.tune(
            settings, kernel, problem, effort, threads=threads, force=force, target=target
        )
    elif problem or threads:
        raise InvalidRequest(message="expected --file or a problem, found both")
    else:
        commands.tune_file(settings, file, effort, force=force, target=target)


@app.command()
def recommend(
    kernel: KernelOrProgram = "gemm",
    m: M = None,
    n: N = None,
    k: K = None,
    dtype: Dtype = None,
    fields: Fields = None,
    threads: Threads = 0,
    hardware: Annotated[
        str | None, typer.Option("--hardware", "--target", help="a device; default: this host")
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, max=MOST_RETURNED, help="how many configs")] = 5,
    fixed: Fixed = None,
    space: Space = None,
    size: Sizes = None,
    service: Service = None,
    as_json: AsJson = False,
) -> None:
    """Print ranked tile configs at once, measured or predicted, with reasons."""
    from tuner_service.cli import commands

    given = {"m": m, "n": n, "k": k, "dtype": dtype}
    if is_program(kernel):
        from tuner_service.cli import programs

        asked = programs.Asked(
            program=kernel, given=programs.parse_given(given, fields or ()), fixed=fixed or (),
            space=space or (), sizes=size or (), threads=threads, hardware=hardware,
            service=service,
        )  # fmt: skip
        programs.recommend(load_settings(), asked, top_k=top_k, as_json=as_json)
        return
    refuse_for_library(kernel, fixed=fixed or (), space=space or (), size=size or ())
    problem = commands.parse_problem(given, fields or ())
    if service is not None:
        from tuner_service.cli import library_by_service

        question = {"kernel": kernel, "problem": problem, "threads": threads, "hardware": hardware}
        library_by_service.recommend(
            load_settings(), service, question, top_k=top_k, as_json=as_json
        )
        return
    commands.recommend(
        load_settings(),
        kernel,
        problem,
        threads=threads,
        hardware=hardware,
        top_k=top_k,
        as_json=as_json,
    )


@app.command()
def replay(
    spaces: Annotated[list[Path], typer.Argument(help="recorded spaces: CSV, T4, Kernel Tuner")],
    strategy: Annotated[
        list[str] | None, typer.Option(help="model, evolutionary, random, exhaustive (repeatable)")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="configurations measured")] = 100,
    seeds: Annotated[int, typer.Option(min=1, help="runs of each strategy")] = 5,
    known: Annotated[
        list[Path] | None, typer.Option(help="the same kernel on another device (repeatable)")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="draw the curves into this SVG file")] = None,
) -> None:
    """Replay searches on recorded spaces: what share of the best speed they reach, and when."""
    from tuner_service.cli import commands

    commands.replay(
        spaces, strategy or ["model", "random"], trials=trials, seeds=seeds, known=known or (),
        plot=plot,
    )  # fmt: skip


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="address to listen on")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="port to listen on")] = None,
    executor: Executor = None,
    ray_address: RayAddress = None,
    coordinator: Annotated[bool, typer.Option(help="start a coordinator, too")] = True,
) -> None:
    """Start the REST service (and a coordinator) on the database of the settings."""
    from tuner_service.cli import commands

    settings = load_settings(host=host, port=port, executor=executor, ray_address=ray_address)
    commands.serve(settings, with_coordinator=coordinator)


@app.command()
def coordinator(
    until_idle: Annotated[bool, typer.Option("--until-idle", help="end without work")] = False,
    parent: Annotated[int | None, typer.Option(help="end with this process")] = None,
    check: Annotated[bool, typer.Option("--check", help="only say whether one leads")] = False,
    executor: Executor = None,
    ray_address: RayAddress = None,
) -> None:
    """Run tuning runs until stopped (one leads per database; others stand by)."""
    from tuner_service.cli import record_commands

    settings = load_settings(executor=executor, ray_address=ray_address)
    status = record_commands.coordinator(
        settings, until_idle=until_idle, parent=parent, check=check
    )
    raise typer.Exit(status)


@app.command()
def worker(
    address: Annotated[str, typer.Option(help="HOST:PORT of the cluster's Ray head")],
    devices: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="how many of it; default: all (a CPU is one)"),
    ] = None,
    offer: Annotated[
        str, typer.Option(help='"cpu", "cuda" or "rocm" (this machine\'s GPUs), or "emulated h200"')
    ] = "cpu",
    node_ip: Annotated[str | None, typer.Option(help="the address others reach it at")] = None,
) -> None:
    """Let this machine measure for a Ray cluster, as a node of it, until stopped."""
    from tuner_service.cli import offering

    offering.worker(address, offer=offer, devices=devices, node_ip=node_ip)


@app.command()
def profile(
    if_missing: Annotated[bool, typer.Option("--if-missing", help="only if not known")] = False,
) -> None:
    """Measure this machine's FMA peak, bandwidth and latency; show and store them."""
    from tuner_service.cli import record_commands

    record_commands.profile(load_settings(), if_missing=if_missing)


@app.command()
def runs(
    state: Annotated[State | None, typer.Option(help="only runs in this state")] = None,
    created_by: CreatedBy = None,
    limit: Limit = 20,
) -> None:
    """List tuning runs, newest first."""
    from tuner_service.cli import record_commands

    record_commands.runs(load_settings(), state=state, created_by=created_by, limit=limit)


@app.command()
def measurements(
    kernel: Annotated[str | None, typer.Option(help="only of this kernel")] = None,
    m: OnlyM = None,
    n: OnlyN = None,
    k: OnlyK = None,
    dtype: Dtype = None,
    status: Annotated[MeasureStatus | None, typer.Option(help="only with this outcome")] = None,
    best: Annotated[bool, typer.Option("--best", help="fastest first")] = False,
    limit: Limit = 20,
) -> None:
    """Query the tuning log."""
    from db.records import MeasurementQuery
    from tuner_service.cli import record_commands

    if kernel is not None:
        from tuner_service.log_names import logged_kernel

        kernel = logged_kernel(kernel)
    query = MeasurementQuery(
        kernel=kernel, m=m, n=n, k=k, dtype=dtype, status=status, best_first=best
    )
    record_commands.measurements(load_settings(), query, limit=limit)


@app.command()
def log(
    kernel: Annotated[str | None, typer.Option(help="only of this kernel")] = None,
    m: OnlyM = None,
    n: OnlyN = None,
    k: OnlyK = None,
    dtype: Dtype = None,
    hardware: Annotated[str | None, typer.Option(help="only of this device")] = None,
    toolchain: Annotated[str | None, typer.Option(help="only with this toolchain's key")] = None,
    status: Annotated[MeasureStatus | None, typer.Option(help="only with this outcome")] = None,
    protocol: Annotated[Protocol | None, typer.Option(help="only timed so")] = None,
    since: Annotated[datetime | None, typer.Option(help="measured then or later (UTC)")] = None,
    until: Annotated[datetime | None, typer.Option(help="measured before (UTC)")] = None,
    near: Annotated[
        str | None, typer.Option(help="the nearest workloads to m=1000,n=1024,k=512")
    ] = None,
    created_by: CreatedBy = None,
    best: Annotated[bool, typer.Option("--best", help="fastest first")] = False,
    winners: Annotated[
        bool, typer.Option("--winners", help="the fastest of each workload and device")
    ] = False,
    limit: Limit = 20,
    export: Annotated[
        Path | None, typer.Option(help="write all that match: FILE.csv, .parquet or .t4.json")
    ] = None,
) -> None:
    """Query the tuning log, or write it into a file."""
    from db.records import MeasurementQuery
    from tuner_service.cli import record_commands
    from tuner_service.wording import in_utc

    near_by = None
    if kernel is not None:
        from tuner_service.log_names import logged_kernel

        kernel = logged_kernel(kernel)
    if near is not None:
        from tuner_service.questions import near_workload

        near_by = near_workload(kernel, near)
    query = MeasurementQuery(
        kernel=kernel, m=m, n=n, k=k, dtype=dtype, toolchain_key=toolchain, status=status,
        protocol=protocol, since=in_utc("--since", since), until=in_utc("--until", until),
        near=near_by, created_by=created_by,
        best_first=best, winners=winners,
    )  # fmt: skip
    record_commands.log(load_settings(), query, hardware, limit=limit, export=export)


@app.command()
def migrate(
    down_to: Annotated[
        str | None,
        typer.Option(metavar="REVISION", help="go back to the schema of an earlier version"),
    ] = None,
) -> None:
    """Bring the database to the schema of this version, or back to that of an earlier one."""
    from tuner_service.cli import record_commands

    if down_to is None:
        record_commands.migrate(load_settings())
    else:
        record_commands.migrate_down(load_settings(), down_to)


def main() -> None:
    """Run the command line: bad input gives one message and exit status 2, never a traceback."""
    _spell_in_any_encoding()
    sys.exit(run_cli(sys.argv[1:]))


def _spell_in_any_encoding() -> None:
    """Have standard output print what its encoding lacks otherwise, where that would be an error.

    A locale of ASCII has no µ, and a name of a file may be no text at all.
    """
    codecs.register_error("tilecore.spelled", _spelled)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="tilecore.spelled")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join("u" if letter == "µ" else "?" for letter in lacking), error.end


def run_cli(arguments: list[str]) -> int:
    """Run one command and return its exit status."""
    try:
        app(args=arguments, prog_name="tilecore")
    except SystemExit as end:  # typer shows wrong usage itself, and says nothing of a closed pipe
        if isinstance(end.__context__, BrokenPipeError):
            return CLOSED_PIPE
        return end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return CLOSED_PIPE
    except TileError as error:
        from tuner_service.errors import exit_status

        return _complain(str(error), exit_status(error))
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return _complain(f"{error.strerror}: what was to be written is not, or not whole", 1)
        if isinstance(error, PermissionError) and error.filename:
            return _complain(f"{error.filename}: {error.strerror}", 2)
        if load_settings().log_level == "debug":
            raise
        where = "TILECORE_LOG_LEVEL=debug shows where"
        return _complain(f"unexpected error: {error!r}\n  hint: {where}", 1)
    return 0


def _complain(text: str, status: int) -> int:
    typer.echo(f"error: {text}", err=True)
    return status


if __name__ == "__main__":
    main()
