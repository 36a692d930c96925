# SPDX-License-Identifier: Apache-2.0
"""profiling-lab critical-path"""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from builders import TraceBuilder
from screen import on_screen

from profiling_lab.cli import main

REPO = Path(__file__).resolve().parents[2]
DEMO = REPO / "profiling_lab" / "exercises" / "e17_python_backtrace" / "recorded" / "demo_h200.sqlite"


@pytest.fixture
def recording(tmp_path: Path) -> str:
    builder = TraceBuilder()
    for i in range(5):
        begin = builder.now_ns
        builder.launch("gemm", 300_000, stack="/app/train.py:7 main").gap(4_000)
        builder.launch("relu", 100_000, stack="/app/net.py:9 forward").gap(4_000)
        builder.range(f"ProfilerStep#{i}", begin, builder.now_ns)
        builder.source("/app/train.py", 7, "y = a @ b")
    return str(builder.write(tmp_path / "run.sqlite"))


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["critical-path", *arguments, "--format", "json"]) == 0
    envelope: dict[str, object] = json.loads(capsys.readouterr().out)
    return envelope


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["critical-path", str(DEMO)]) == 0
    out, err = capsys.readouterr()
    assert "the step is set by the GPU for 97." in out and "at model.py:87" in out and err == ""
    assert "the one of median length among 4" in out and "gain without ms" in out
    assert "y = heavy_layer" in out or "source" not in out


def test_the_step_has_one_number(recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps without ranges were counted from 2 in words and from 0 for --step."""
    builder = TraceBuilder()
    for _ in range(4):
        begin = builder.now_ns
        builder.launch("gemm", 300_000, stack="/app/train.py:7 main").gap(4_000)
        builder.range("Optimizer.step#SGD.step", begin, builder.now_ns)
    counted = str(builder.write(tmp_path / "counted.sqlite"))
    for path, said in ((counted, ""), (recording, r" \(the program's ProfilerStep#2\)")):
        for step, how_many in (((), r", the one of median length among \d"), (("--step", "2"), "")):
            assert main(["critical-path", path, *step]) == 0
            out = capsys.readouterr().out
            number = r"\d" if not step else "2"
            wanted = said.replace("2", r"\d") if not step else said
            assert re.search(rf"^  step {number}{wanted}{how_many}: [\d.]+ .s on the path", out, re.M), out
            assert not step or re.search(rf"window: step 2 of 0 to \d{said};", out), out


def test_json_sums_to_the_step(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ((), ("--step", "2"), ("--segments",)):
        envelope = answer(capsys, recording, "--limit", "0", *options)
        trace, rows = envelope["trace"], envelope["data"]["rows"]  # type: ignore[index, call-overload]
        took = "ns" if options == ("--segments",) else "path_ns"
        assert sum(row[took] for row in rows) == trace["step"]["length_ns"]
        assert sum(trace["path_ns"].values()) == trace["step"]["length_ns"]
        assert all(sum(row["kinds"].values()) == row[took] for row in rows)
        assert len({row["key"] for row in rows}) == len(rows)
        if options == ("--step", "2"):
            assert trace["step"]["number"] == 2 and trace["steps"] == 1


def test_what_if(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    envelope = answer(capsys, recording, "--what-if", "train.py:7=0.5", "--what-if", "relu=0")
    rows = envelope["data"]["rows"]  # type: ignore[index, call-overload]
    assert [row["key"] for row in rows] == ["train.py:7=0.5", "relu=0", "all of these"]
    for row in rows:
        assert row["gain_ns"] == row["before_ns"] - row["after_ns"]
    assert rows[1]["gain_ns"] == 0, "the host is the limit once the kernels are done"


def test_ranking(capsys: pytest.CaptureFixture[str]) -> None:
    envelope = answer(capsys, str(DEMO), "--what-if", "all", "--limit", "4")
    rows = envelope["data"]["rows"]  # type: ignore[index, call-overload]
    assert len(rows) == 4 and "model.py:87=0" in rows[0]["key"]
    assert [row["gain_ns"] for row in rows] == sorted((row["gain_ns"] for row in rows), reverse=True)
    assert 0.43 < rows[0]["gain_frac"] < 0.46


def test_csv_and_markdown(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["critical-path", recording, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows[0]["file"] and {row["function"] for row in rows} <= {"main", "forward", ""}
    assert main(["critical-path", recording, "--format", "md", "--segments", "--limit", "1"]) == 0
    assert "--limit 0 shows all" in capsys.readouterr().out


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("options", [(), ("--segments",), ("--what-if", "all")])
def test_no_number_is_cut(width: int, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    status, shown = on_screen(["critical-path", str(DEMO), "--limit", "6", *options], width)
    assert status == 0 and "Traceback" not in shown
    rows = answer(capsys, str(DEMO), "--limit", "6", *options)["data"]["rows"]  # type: ignore[index, call-overload]
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    for row in rows:
        took = row.get("gain_ns") if "--what-if" in options else row.get("path_ns", row.get("ns"))
        assert f"{took / 1e6:,.3f}" in plain, "each row has its time in ms, or in µs"
    assert max(map(len, plain.splitlines())) <= width


def test_errors(recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str) -> tuple[int, str]:
        return main(["critical-path", *arguments]), capsys.readouterr().err

    assert said(recording, "--what-if", "train.py:7")[0] == 2
    status, text = said(recording, "--what-if", "train.py:8=0")
    assert status == 2 and "train.py:8 is no line" in text and "lines are train.py:7, net.py:9" in text
    assert said(recording, "--steps-by", "nothing")[0] == 3
    assert said(str(tmp_path / "none.sqlite"))[0] == 4
    builder = TraceBuilder()
    for _ in range(3):
        builder.launch("gemm", 5_000, recorded=False)
    status, text = said(str(builder.write(tmp_path / "no_launches.sqlite")))
    assert status == 3 and "has no launches of its GPU operations" in text
    with pytest.raises(SystemExit):
        main(["critical-path", recording, "--segments", "--what-if", "all"])
