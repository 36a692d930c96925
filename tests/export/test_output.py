# SPDX-License-Identifier: Apache-2.0
"""Files that exist under their name only once they are complete"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from profiling_lab.errors import UsageError
from profiling_lab.export.output import new_file, new_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    with new_file(tmp_path / "out.json") as place:
        place.write_text("whole")
        assert not (tmp_path / "out.json").exists()
    assert names(tmp_path) == ["out.json"] and (tmp_path / "out.json").read_text() == "whole"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_broke_off_leaves_nothing_and_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "out.json").write_text("old")
    with pytest.raises(error), new_file(tmp_path / "out.json", overwrite=True) as place:
        place.write_text("half")
        raise error
    with pytest.raises(error), new_folder(tmp_path / "out", suffix=".parquet") as folder:
        (folder / "a.parquet").write_text("half")
        raise error
    assert names(tmp_path) == ["out.json"] and (tmp_path / "out.json").read_text() == "old"


def test_no_file_is_replaced_without_asking(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out.json").write_text("old")
    with pytest.raises(UsageError, match="pass --overwrite"), new_file(tmp_path / "out.json"):
        raise AssertionError("not reached")
    with pytest.raises(UsageError, match="is a folder"), new_file(tmp_path / "out", overwrite=True):
        raise AssertionError("not reached")
    with (
        pytest.raises(UsageError, match="pass --overwrite"),
        new_folder(tmp_path / "out", suffix=".parquet"),
    ):
        raise AssertionError("not reached")
    with new_file(tmp_path / "out.json", overwrite=True) as place:
        place.write_text("new")
    assert (tmp_path / "out.json").read_text() == "new"


def test_a_folder_is_replaced_only_where_it_holds_an_export(tmp_path: Path) -> None:
    for text in ("old", "new"):
        with new_folder(tmp_path / "out", suffix=".parquet", overwrite=True) as folder:
            (folder / f"{text}.parquet").write_text(text)
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == ["new.parquet"]
    (tmp_path / "out" / "thesis.tex").write_text("dear")
    with (
        pytest.raises(UsageError, match="contains other files"),
        new_folder(tmp_path / "out", suffix=".parquet", overwrite=True),
    ):
        raise AssertionError("not reached")
    with (
        pytest.raises(UsageError, match="is a file; a folder was expected"),
        new_folder(tmp_path / "out" / "thesis.tex", suffix=".parquet", overwrite=True),
    ):
        raise AssertionError("not reached")
    assert (tmp_path / "out" / "thesis.tex").read_text() == "dear"


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="is a pipe or a device"), new_file(pipe, overwrite=True):
        raise AssertionError("not reached")
    assert pipe.is_fifo()


def test_the_trace_survives_its_export(tmp_path: Path) -> None:
    trace, link = tmp_path / "run.sqlite", tmp_path / "link"
    trace.write_text("dear")
    link.symlink_to(trace)
    with (
        pytest.raises(UsageError, match="is the trace itself"),
        new_file(link, overwrite=True, source=trace),
    ):
        raise AssertionError("not reached")


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"), new_file(tmp_path / "no" / "out.json"):
        raise AssertionError("not reached")
    says = r"out.json cannot be written: No space left"
    with pytest.raises(UsageError, match=says) as caught, new_file(tmp_path / "out.json"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "\n" not in str(caught.value)
