"""Files that are there whole or not at all."""

import errno
from pathlib import Path

import pytest

from tilecore.whole_file import written_whole


def test_what_was_there_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "table.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), written_whole(path) as partial:
        partial.write_text("ne\ud800", encoding="utf-8")
    assert path.read_text() == "old"
    with written_whole(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_is_only_read_says_what_could_not_be_written(tmp_path, monkeypatch):
    """There to remove a file that does not exist fails, too, and that hid the first error."""

    def unlink(self, missing_ok=False):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(FileNotFoundError), written_whole(tmp_path / "none" / "x") as partial:
        partial.write_text("x")
