# SPDX-License-Identifier: Apache-2.0
"""profiling-lab lines"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.cli import main


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    builder = TraceBuilder()
    for line in range(1, 36):
        builder.launch(
            "gemm", 1000 * line, stack=f"/app/train.py:8 main > /app/model.py:{line} Net.forward", peek=line
        )
    builder.launch("gemm_t", 50_000, node=34, node_name="MmBackward0", thread=2, peek=0)
    return builder.write(tmp_path / "run.sqlite")


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    status = main([str(part) for part in argv])
    out, err = capsys.readouterr()
    return status, out, err


def test_table_opens_with_coverage_and_says_that_it_is_cut(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, "lines", recording)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert (
        lines[0]
        == "run.sqlite: 680.000 µs of GPU time in 36 operations, summed; busy 680.000 µs of 690.000 µs"
    )
    assert lines[1] == "100.0 % has a line of your code; 7.4 % is backward joined with its forward line"
    assert lines[3].split() == [
        "line",
        "function",
        "forward",
        "µs",
        "backward",
        "µs",
        "total",
        "µs",
        "kernels",
        "copies",
        "of",
        "GPU",
        "time",
    ]
    assert lines[4].split() == [
        "/app/model.py:35",
        "Net.forward",
        "35.000",
        "50.000",
        "85.000",
        "2",
        "0",
        "12.5",
        "%",
    ]
    assert lines[-1] == "30 of 35 rows; --limit 0 shows all"


def test_json_has_everything_under_stable_keys(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "lines", recording, "--format", "json", "--limit", "0", "--depth", "2")
    envelope = json.loads(out)
    assert (envelope["schema"], envelope["command"]) == ("profiling-lab/1", "lines")
    assert len(envelope["data"]["rows"]) == 35 and envelope["data"]["truncated"] is False
    assert envelope["data"]["rows"][0] == {
        "key": "/app/model.py:35 < /app/train.py:8",
        "function": "Net.forward",
        "file": "/app/model.py",
        "line": 35,
        "forward_ns": 35_000,
        "backward_ns": 50_000,
        "unknown_ns": 0,
        "gpu_ns": 85_000,
        "kernels": 2,
        "copies": 0,
        "share_frac": 0.125,
        "callers": [{"function": "main", "file": "/app/train.py", "line": 8}],
    }
    assert envelope["coverage"]["gpu_ns"] == 680_000
    assert envelope["coverage"]["unattributed"] == []


def test_options_reach_the_analysis(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "lines", recording, "--format", "csv", "--by", "file", "--own", "train.py")
    assert [row["key"] for row in csv.DictReader(io.StringIO(out))] == ["/app/train.py"]
    _, out, _ = run(capsys, "lines", recording, "--format", "csv", "--phase", "backward")
    assert [row["line"] for row in csv.DictReader(io.StringIO(out))] == ["35"]
    _, out, _ = run(capsys, "lines", recording, "--phase", "backward")
    assert "forward µs" not in out.replace("backward µs", "")


@pytest.mark.parametrize("by", ["line", "function", "file", "module", "kernel"])
@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
def test_every_grouping_in_every_form(
    recording: Path, capsys: pytest.CaptureFixture[str], by: str, form: str
) -> None:
    status, out, err = run(capsys, "lines", recording, "--by", by, "--format", form, "--limit", "2")
    assert status == 0 and err == "" and ("gemm" if by == "kernel" else "model.py") in out


def test_paths_under_the_current_folder_are_shown_relative(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = TraceBuilder().launch("k", 1, stack=f"{tmp_path}/model.py:3 f").write(tmp_path / "run.sqlite")
    monkeypatch.chdir(tmp_path)
    assert "\nmodel.py:3 " in run(capsys, "lines", path)[1]
    _, out, _ = run(capsys, "lines", path, "--format", "csv")
    assert f"{tmp_path}/model.py:3," in out, "keys do not depend on where one stands"


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        (["nowhere.sqlite"], 4, "there is no such file"),
        (["{run}", "--by", "range"], 3, "no NVTX ranges"),
    ],
)
def test_errors_are_one_sentence_on_stderr(
    recording: Path, capsys: pytest.CaptureFixture[str], argv: list[str], status: int, says: str
) -> None:
    found, out, err = run(capsys, "lines", *(part.format(run=recording) for part in argv))
    assert (found, out) == (status, "") and says in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "argv", [["--depth", "0"], ["--limit", "-1"], ["--by", "moon"], ["--format", "xlsx"]]
)
def test_usage_errors(recording: Path, capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["lines", str(recording), *argv])
    assert caught.value.code == 2


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["lines", "--help"])
    assert "profiling-lab lines run.sqlite" in capsys.readouterr().out
