"""The command line, continued: ``tilecore dispatch``."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from db.records import MAX_TRIALS
from recommender.shapes import SAMPLES
from tuner_service.settings import load_settings

TRIALS = 24  # of a shape: there are many


def dispatch(
    kernel: Annotated[
        str, typer.Argument(help="a kernel of the library, or path/program.py:function")
    ] = "gemm",
    m: Annotated[str | None, typer.Option("--m", "-m", help="FIRST:LAST, A,B,... or SIZE")] = None,
    n: Annotated[str | None, typer.Option("--n", "-n", help="the same")] = None,
    k: Annotated[str | None, typer.Option("--k", "-k", help="the same")] = None,
    dtype: Annotated[str | None, typer.Option(help="element type of the inputs")] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="another field, or sizes of it"),
    ] = None,
    space: Annotated[
        list[str] | None,
        typer.Option(metavar="KNOB=A,B", help="of a program: values to choose from"),
    ] = None,
    weights: Annotated[
        str, typer.Option(help="log, uniform, or a .csv or .json file of sizes and `weight`")
    ] = "log",
    samples: Annotated[
        int, typer.Option(min=2, max=256, help="sizes taken of each range")
    ] = SAMPLES,
    tolerance: Annotated[
        float, typer.Option(help="0.05: every shape within 5 % of its best")
    ] = 0.05,
    max_configs: Annotated[
        int | None, typer.Option(min=1, help="no more, whatever the loss")
    ] = None,
    threads: Annotated[int, typer.Option(help="cores to use; 0: all")] = 0,
    hardware: Annotated[
        str | None, typer.Option("--hardware", "--target", help="a device; default: this host")
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="measure: tune each shape, then cross-measure")
    ] = False,
    trials: Annotated[
        int, typer.Option(min=1, max=MAX_TRIALS, help="screening trials of a shape")
    ] = TRIALS,
    trust_predictions: Annotated[
        bool, typer.Option("--trust-predictions", help="also at shapes that were measured")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="write the table into this file")] = None,
    form: Annotated[
        Literal["table", "vllm"], typer.Option("--format", help="of the file")
    ] = "table",
    executor: Annotated[
        Literal["auto", "ray", "local"] | None, typer.Option(help="who runs the workers")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="HOST:PORT of a Ray cluster whose nodes measure")
    ] = None,
    service: Annotated[
        str | None,
        typer.Option(help="URL of the service that is to answer; with --tune its workers measure"),
    ] = None,
) -> None:
    """Choose the fewest configs for dynamic shapes and write which serves which sizes."""
    from recommender.dispatch.table import Choice
    from tilecore import kernels
    from tuner_service import questions
    from tuner_service.cli import dispatching, programs
    from tuner_service.cli.program_arguments import is_program, refuse_for_library
    from tuner_service.dispatch.programs import FunctionForDispatch, split_given
    from tuner_service.dispatch.shapes import AskedTable, read_weights, split_sizes
    from tuner_service.jobs import Effort

    settings = load_settings(executor=executor, ray_address=ray_address)
    given = {"m": m, "n": n, "k": k, "dtype": dtype}
    given = {name: value for name, value in given.items() if value is not None}
    named = questions.assigned("--set", fields or ())
    weighting, counts = read_weights(weights)
    asked = AskedTable(
        kernel=kernel, problem={}, counts=counts, weighting=weighting, samples=samples,
        threads=threads, hardware=hardware,
    )  # fmt: skip
    effort = Effort(
        max_trials=trials, time_limit_s=settings.time_limit_s, on_this_host=settings.measures_here
    ) if tune else None  # fmt: skip
    with ExitStack() as files:
        if is_program(kernel):
            function = FunctionForDispatch.of(
                files.enter_context(programs.loaded(kernel)), programs.spaces(space or ())
            )
            spelled = programs.spelled(function.function, given)
            problem, sizes = split_given(questions.together(spelled, "--set", named))
            asked = replace(asked, problem=problem, sizes=sizes, program=function)
        else:
            refuse_for_library(kernel, space=space or ())
            problem, sizes = split_sizes(
                kernels.get(kernel), questions.together(given, "--set", named)
            )
            asked = replace(asked, problem=problem, sizes=sizes)
        dispatching.dispatch(
            settings, asked, Choice(tolerance=tolerance, max_configs=max_configs),
            trust_predictions=trust_predictions, effort=effort, output=output, form=form,
            service=service,
        )  # fmt: skip
