# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab merge`: what it says, how it refuses, and that the verbs read what it wrote."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from profiling_lab.cli import main


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The recording of a real training run as ranks 0 and 1 of a job; the second began 5 ms later."""
    import profiling_lab

    package = Path(profiling_lab.__file__).parent
    demo = package / "exercises" / "e17_python_backtrace" / "recorded" / "demo_h200.sqlite"
    paths = []
    for rank in (0, 1):
        path = tmp_path / f"run.rank{rank}.sqlite"
        path.write_bytes(demo.read_bytes())
        with closing(sqlite3.connect(path)) as file, file:
            file.execute("INSERT INTO PYREC_META VALUES ('rank', ?), ('world_size', '2')", (str(rank),))
            file.execute(
                "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + ?,"
                " systemClockNs = systemClockNs + ?",
                (rank * 5_000_000, rank * 5_000_000),
            )
        paths.append(str(path))
    return paths


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main([*arguments, "--format", "json"]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)["data"]["rows"]
    return found


def test_two_ranks_of_a_real_run(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "job.sqlite")
    assert main(["merge", *files, "-o", out]) == 0
    said = capsys.readouterr().err
    assert "merged 2 processes with" in said and f"wrote {out}" in said
    assert "another file has a process with the same pid" in said  # a copy: both have the same process id
    assert "all files come from one machine; its wall clock was adjusted by 0.000 ms" in said
    one = {row["key"]: row for row in rows(capsys, "lines", files[0])}
    both = {row["key"]: row for row in rows(capsys, "lines", out)}
    assert one.keys() == both.keys()
    for key, row in one.items():
        for column in ("forward_ns", "backward_ns", "kernels"):
            assert both[key][column] == 2 * int(str(row[column])), (key, column)
    second = {row["key"]: row for row in rows(capsys, "lines", out, "--rank", "1")}
    assert {key: row["kernels"] for key, row in second.items()} == {
        k: row["kernels"] for k, row in one.items()
    }
    assert [row["rank"] for row in rows(capsys, "ranks", out)] == [0, 1]
    for verb in ("info", "gaps", "kernels", "streams", "steps", "check"):
        assert main([verb, out]) in (0, 1), verb
    assert "rank 1 is pid" in (main(["info", out]), capsys.readouterr().out)[1]


def test_an_existing_file_is_kept(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "job.sqlite"
    out.write_text("mine")
    assert main(["merge", *files, "-o", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err and out.read_text() == "mine"
    assert main(["merge", *files, "-o", str(out), "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["{0}"], 2, "expected two or more"),
        (["{0}", "{0}"], 3, "are the same recording"),
        (["{0}", "none.sqlite"], 4, "there is no file"),
        (["{0}", "{1}", "-o", "no/folder/x.sqlite"], 2, "does not exist"),
    ],
)
def test_refusals(
    files: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, text: str
) -> None:
    arguments = [argument.format(*files) for argument in arguments]
    if "-o" not in arguments:
        arguments += ["-o", f"{files[0]}.merged"]
    assert main(["merge", *arguments]) == status
    assert text in capsys.readouterr().err and not Path(f"{files[0]}.merged").exists()
