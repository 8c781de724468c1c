"""What the documents name is there: functions, for whoever imports the package alone, and files."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_function_of_the_package_that_a_document_calls_is_there():
    texts = [ROOT / "README.md", *ROOT.joinpath("docs").glob("*.md")]
    found = {
        name for text in texts for name in re.findall(r"\b(tilecore(?:\.\w+)+)\(", text.read_text())
    }
    assert "tilecore.runtime.set_num_threads" in found
    for name in sorted(found):  # a process each: what one imports, the next must not find
        done = subprocess.run(
            [sys.executable, "-c", f"import tilecore; {name}"], capture_output=True, text=True
        )
        assert done.returncode == 0, f"{name}: {done.stderr}"


def test_every_file_that_a_document_links_to_is_there():
    pages = [*ROOT.glob("*.md"), *ROOT.joinpath("docs").glob("*.md")]
    pages += ROOT.joinpath("benchmarks/results").glob("*.md")
    missing = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text())
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert not missing
