"""``python -m tilecore.compat [--sm 90] program.py [args]`` and ``--survey DIR``."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tilecore.compat import gpu_builds, runner, survey
from tilecore.compat.gpu_builds import Builds
from tilecore.compat.runner import Machine
from tilecore.errors import TileError, ToolchainMissing
from tilecore.target import device_of_torch, parse_gpu_target


def main(argv: list[str] | None = None) -> int:
    """Run a program or a survey; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tilecore.compat", description=__doc__)
    parser.add_argument("--sm", help="compute capability that programs see (90)")
    parser.add_argument("--survey", type=Path, metavar="DIR", help="run every program below DIR")
    parser.add_argument("--out", type=Path, help="write the survey's table to this file (Markdown)")
    parser.add_argument("--match", default="", help="survey: only paths with this regex in them")
    parser.add_argument(
        "--every", action="store_true", help="survey: programs that do not import tilelang too"
    )
    parser.add_argument("--limit", type=float, default=120.0, help="survey: seconds per program")
    parser.add_argument("--jobs", type=int, default=1, help="survey: programs run at once")
    parser.add_argument(
        "--arguments",
        type=Path,
        help='survey: TOML file of lines "program.py" = ["--n", "8"] or {main = {n = 8}}',
    )
    parser.add_argument(
        "--tests", default="", help='survey: options of pytest for files of tests ("-m smoke")'
    )
    parser.add_argument("--source", default="", help="survey: what the programs are, for the table")
    parser.add_argument(
        "--compile-for", default="", metavar="TARGETS",
        help='survey: build what the programs compile for these GPUs too ("sm_80,h100")',
    )  # fmt: skip
    parser.add_argument(
        "--emulate", default="", metavar="TARGET",
        help='run the code of this GPU on the emulator ("h100") instead of code for the CPU',
    )  # fmt: skip
    parser.add_argument(
        "--device", action="store_true", help="run on this machine's GPU instead of its CPU"
    )
    parser.add_argument("--gpu-out", type=Path, help="survey: the table of these builds (Markdown)")
    parser.add_argument("program", type=Path, nargs="?")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    given = parser.parse_args(argv)
    try:
        machine = _machine(given.sm, given.emulate, given.device)
    except TileError as error:
        print(error, file=sys.stderr)
        return 2
    if given.survey is not None:
        return _survey(given, machine)
    if given.program is None or not given.program.is_file():
        print(f"expected a program, found {given.program or 'none'}", file=sys.stderr)
        return 2
    try:
        runner.run(given.program.resolve(), given.args, machine)
    except TileError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _machine(sm: str | None, emulated: str, is_device: bool) -> Machine:
    """Return what programs see: by default the emulated GPU's compute capability, or Hopper's.

    Raises:
        ToolchainMissing: they are to run on a GPU, and there is none (TC306).
    """
    if is_device:
        if device_of_torch() is None:
            hint = "leave out --device: programs run on this CPU"
            raise ToolchainMissing(tool="a GPU that torch can use", purpose="--device", hint=hint)
        return Machine(is_device=True)
    number = 90
    if emulated:
        number = parse_gpu_target(emulated).capability
    if sm is not None:
        number = int(sm)
    return Machine(divmod(number, 10), emulated)


def _runs_on(given: argparse.Namespace) -> str:
    if given.device:
        return "this machine's GPU"
    return f"{given.emulate}, emulated" if given.emulate else "llvm"


def _unusable(given: argparse.Namespace) -> Iterator[str]:
    """Yield what is wrong with the options of a survey, before it runs for hours."""
    if not given.survey.is_dir():
        yield f"expected a folder, found {given.survey}"
    try:
        re.compile(given.match)
    except re.error as error:
        yield f"--match: expected a regular expression, found {given.match!r}: {error}"
    if given.jobs < 1:
        yield f"--jobs: expected 1 or more, found {given.jobs}"
    if not given.limit > 0:
        yield f"--limit: expected seconds above 0, found {given.limit}"
    for option, path in (("--out", given.out), ("--gpu-out", given.gpu_out)):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            yield f"{option}: expected a file in a folder that exists, found {path}"


def _survey(given: argparse.Namespace, machine: Machine) -> int:
    folder = given.survey.resolve()
    faults = [*_unusable(given)]
    if faults:
        print(*faults, sep="\n", file=sys.stderr)
        return 2
    files = survey.programs(folder, every=given.every)
    chosen = [p for p in files if re.search(given.match, p.as_posix())]
    if not chosen:
        which = "a program that imports tilelang" if not given.every else "a program"
        print(f"expected {which} below {given.survey}, found none (--every: all)", file=sys.stderr)
        return 2
    arguments = {}
    if given.arguments is not None:
        try:
            arguments = tomllib.loads(given.arguments.read_text())
        except (OSError, tomllib.TOMLDecodeError) as error:
            print(f"expected a TOML file in {given.arguments}, found: {error}", file=sys.stderr)
            return 2

    def tell(s: survey.Surveyed) -> None:
        print(f"{s.wall_s:6.1f} s  {s.program}: {s.outcome.kind}  {s.outcome.reason}", flush=True)

    with tempfile.TemporaryDirectory(prefix="tilecore-") as scratch:
        try:
            targets = [parse_gpu_target(name) for name in given.compile_for.split(",") if name]
        except TileError as error:
            print(error, file=sys.stderr)
            return 2
        builds = Builds(targets, Path(scratch) / "builds") if targets else None
        found = survey.survey(
            chosen, folder, given.limit, arguments=arguments, jobs=given.jobs,
            tests=shlex.split(given.tests), tell=tell, builds=builds, machine=machine,
        )  # fmt: skip
        if builds is not None and given.gpu_out is not None:
            text = gpu_builds.markdown(gpu_builds.read(builds.path), given.source or folder.name)
            given.gpu_out.write_text(text)
    if given.out is not None:
        given.out.write_text(
            survey.markdown(
                found, "TileLang programs on tilecore", given.source or folder.name,
                _runs_on(given),
            )
        )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
