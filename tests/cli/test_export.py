# SPDX-License-Identifier: Apache-2.0
"""profiling-lab export"""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import pytest
from builders import TraceBuilder
from package_root import PACKAGE_ROOT

from profiling_lab.cli import _progress, main

RECORDED = PACKAGE_ROOT / "profiling_lab/exercises/e17_python_backtrace/recorded"
FORMS = ["perfetto", "speedscope", "collapsed", "parquet"]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    builder = TraceBuilder().range("step", 1_000_000, 1_004_000)
    builder.launch("gemm", 1000, stack="/app/train.py:8 main > /v/site-packages/lib.py:1 f")
    builder.launch("late", 70, stack="/app/train.py:9 main")
    return builder.write(tmp_path / "run.sqlite")


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    status = main(["export", *map(str, argv)])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_written_and_reported(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    target = tmp_path / "out"
    status, out, err = run(capsys, recording, "--to", form, "-o", target)
    assert (status, err) == (0, "")
    assert "run.sqlite: 1.070 µs of GPU time" in out and f"wrote {target} (" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run.sqlite"]
    status, out, err = run(capsys, recording, "--to", form, "-o", target)
    assert (status, out) == (2, "") and "pass --overwrite" in err
    status, out, _ = run(capsys, recording, "--to", form, "-o", target, "--overwrite", "--format", "json")
    envelope = json.loads(out)
    assert (status, envelope["command"], envelope["trace"]["to"]) == (0, "export", form)
    rows = {row["what"]: row["rows"] for row in envelope["data"]["rows"]}
    assert rows[{"perfetto": "GPU operations", "parquet": "operations"}.get(form, "stacks")] == 2


def test_a_name_that_ends_in_gz_is_packed(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, recording, "--to", "perfetto", "-o", tmp_path / "a.json")
    run(capsys, recording, "--to", "perfetto", "-o", tmp_path / "a.json.gz")
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == (tmp_path / "a.json").read_bytes()


def test_a_window_is_all_that_is_written(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, recording, "--to", "perfetto", "-o", tmp_path / "a.json", "--nvtx", "step")
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    assert [e["name"] for e in events if e.get("cat") == "kernel"] == ["gemm"]
    run(capsys, recording, "--to", "collapsed", "-o", tmp_path / "a.txt", "--nvtx", "step")
    assert (
        tmp_path / "a.txt"
    ).read_text() == "forward;main (/app/train.py:8);f (/v/site-packages/lib.py:1);gemm 1000\n"
    run(
        capsys,
        recording,
        "--to",
        "collapsed",
        "-o",
        tmp_path / "b.txt",
        "--frames",
        "own",
        "--own",
        "train.py",
    )
    assert (tmp_path / "b.txt").read_text().splitlines()[0] == "forward;main (/app/train.py:8);gemm 1000"


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        (["{folder}/no.sqlite", "--to", "collapsed", "-o", "{folder}/o"], 4, "there is no such file"),
        (["{folder}/no.sqlite", "--to", "collapsed", "-o", "{run}"], 4, "there is no such file"),
        (["{run}", "--to", "collapsed", "-o", "{folder}/no/o"], 2, "does not exist"),
        (["{run}", "--to", "collapsed", "-o", "{run}", "--overwrite"], 2, "is the trace itself"),
        (["{run}", "--to", "collapsed", "-o", "-"], 2, "-o needs a file name"),
        (
            ["{run}", "--to", "parquet", "-o", "{folder}", "--overwrite"],
            2,
            "contains other files than .parquet",
        ),
        (
            ["{run}", "--to", "perfetto", "-o", "{folder}/o", "--frames", "own"],
            2,
            "--frames cannot be combined with",
        ),
        (["{run}", "--to", "perfetto", "-o", "{folder}/o", "--nvtx", "moon"], 3, "moon"),
    ],
)
def test_errors_are_one_sentence_and_leave_nothing(
    recording: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    status: int,
    says: str,
) -> None:
    found, out, err = run(capsys, *(part.format(run=recording, folder=tmp_path) for part in argv))
    assert (found, out) == (status, "") and says in err and err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run.sqlite"]


def test_an_empty_trace_is_not_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = TraceBuilder().call("cudaMalloc").write(tmp_path / "t.sqlite")
    for form in FORMS:
        status, _, err = run(capsys, path, "--to", form, "-o", tmp_path / "o")
        assert status == 3 and "no GPU operation" in err


@pytest.mark.parametrize("form", FORMS)
def test_nothing_of_the_captured_environment_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    path = tmp_path / "run.sqlite"
    path.write_bytes((RECORDED / "demo_h200.sqlite").read_bytes())
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE IF NOT EXISTS META_DATA_CAPTURE (name TEXT, value TEXT)")
        file.execute("INSERT INTO META_DATA_CAPTURE VALUES ('ENV:TOKEN', 'hunter2hunter2')")
        file.execute("INSERT INTO StringIds SELECT max(id) + 1, 'hunter2hunter2' FROM StringIds")
    file.close()
    target = tmp_path / "out"
    assert run(capsys, path, "--to", form, "-o", target)[0] == 0
    for written in [target] if target.is_file() else target.iterdir():
        assert b"hunter2" not in written.read_bytes()


def test_a_long_export_tells_how_far_it_is(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_progress, "_WAIT_S", {False: -1.0})
    _, out, err = run(capsys, recording, "--to", "parquet", "-o", tmp_path / "out")
    assert "operations: 2 of 2\n" in err and "stacks: 3 of 3\n" in err and "of 2\n" not in out
