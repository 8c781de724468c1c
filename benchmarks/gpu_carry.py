"""tilecore's compiler for a GPU machine that nothing can be installed on: TVM and wheels, in parts.

    python benchmarks/gpu_carry.py FOLDER [--python 3.12] [--part-mib 28]   # where pip works
    sh FOLDER/unpack.sh SITE                    # on the machine, with all parts beside it
    PYTHONPATH=SITE:. python benchmarks/gpu_random.py programs              # there

Packs are compiled where TVM is installed, and need none of this (``gpu_peers.py``,
``gpu_verdicts.py``, ``gpu_campaign.py``). What compiles on the device itself does: TVM's library
without its symbols, what tilecore imports beside torch, NumPy, NVRTC and cuda-bindings, for the
Python there, and the entry points of this project. A part may be carried in a call of its own.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

WHEELS = (
    "alembic", "annotated-types", "anyio", "apache-tvm-ffi", "certifi", "click", "h11", "httpcore",
    "httpx", "idna", "mako", "markdown-it-py", "markupsafe", "mdurl", "pydantic", "pydantic-core",
    "pydantic-settings", "pygments", "python-dotenv", "rich", "sqlalchemy", "structlog",
    "typing-extensions", "typing-inspection",
)  # fmt: skip
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17")
LIBRARY = "libtvm_compiler.so"
LEFT_OUT = ("3rdparty", "src", "include", "__pycache__", LIBRARY)  # of TVM's package
UNPACK = f"""set -e
here=$(dirname "$0"); mkdir -p "$1"
cat "$here"/part.* > "$1.tar.xz.tmp" && tar -xJf "$1.tar.xz.tmp" -C "$1" && rm "$1.tar.xz.tmp"
chmod +x "$1"/tvm/lib/*.so
test -s "$1"/tvm/lib/{LIBRARY}
"""


def gather(site: Path, python: str) -> None:
    """Put all that is imported into a folder."""
    found = importlib.util.find_spec("tvm")
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    shutil.copytree(package, site / "tvm", ignore=shutil.ignore_patterns(*LEFT_OUT))
    library = site / "tvm" / "lib" / LIBRARY
    shutil.copy(package / "lib" / LIBRARY, library)
    subprocess.run(["strip", "--strip-unneeded", library], check=True)
    with tempfile.TemporaryDirectory() as folder:
        named = [f"{name}=={importlib.metadata.version(name)}" for name in WHEELS]
        platforms = [o for p in PLATFORMS for o in ("--platform", f"{p}_x86_64")]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:",
             "--python-version", python, "--implementation", "cp", *platforms, "-d", folder,
             *named],
            check=True,
        )  # fmt: skip
        for wheel in Path(folder).glob("*.whl"):
            with zipfile.ZipFile(wheel) as file:
                file.extractall(site)
    own = importlib.metadata.distribution("tilecore")
    info = site / f"tilecore-{own.version}.dist-info"
    info.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (info / name).write_text(own.read_text(name) or "")


def pack(site: Path, folder: Path, part_bytes: int) -> None:
    """Write an archive of a folder in parts, and what unpacks them."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("part.*"):
        old.unlink()
    with tempfile.TemporaryFile() as archive:
        with (
            lzma.open(archive, "wb", preset=9) as packed,
            tarfile.open(fileobj=packed, mode="w|") as tar,
        ):
            tar.add(site, ".")
        archive.seek(0)
        for number in range(100):
            part = archive.read(part_bytes)
            if not part:
                break
            (folder / f"part.{number:02d}").write_bytes(part)
            print(f"part.{number:02d}: {len(part) / 2**20:.1f} MiB", flush=True)
    (folder / "unpack.sh").write_text(UNPACK)


def main() -> None:
    """Gather and pack."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="of the machine")
    parser.add_argument("--part-mib", type=float, default=28.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder)
        gather(site, given.python)
        pack(site, given.folder, int(given.part_mib * 2**20))


if __name__ == "__main__":
    main()
