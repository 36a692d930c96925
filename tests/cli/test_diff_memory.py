# SPDX-License-Identifier: Apache-2.0
"""profiling-lab diff --memory and --gate-memory, on recordings of an H200 and made ones."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from memory_model.recordings import MIB, MemoryRecording, training
from screen import on_screen

from profiling_lab.cli import main

H200 = Path(__file__).parents[1] / "data" / "memory_h200"
PEAKS = {name: counts["peak_bytes"] for name, counts in json.loads((H200 / "torch.json").read_text()).items()}


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("h200"), "eager")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It keeps 8 MiB of each step in a list, in line 86."""
    return unpacked(tmp_path_factory.mktemp("h200"), "list_of_activations")


def unpacked(folder: Path, name: str) -> Path:
    path = folder / f"{name}.sqlite"
    path.write_bytes(gzip.decompress((H200 / f"{name}.sqlite.gz").read_bytes()))
    return path


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    status = main(["diff", *(str(part) for part in argv)])
    out, err = capsys.readouterr()
    return status, out, err


def test_table_of_an_h200(eager: Path, kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, eager, kept, "--memory")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "peak memory 1.2 GiB -> 1.2 GiB, +56.0 MiB (+4.6 %)"
    assert lines[2] == f"before: eager.sqlite: {PEAKS['eager']:,} bytes"
    first = next(line for line in lines if "memory_programs.py" in line)
    assert (
        re.split(r"  +", first)[1:] == ["forward", "kept", "0 B", "48.1 MiB", "48.1 MiB"]
        and ":86 keep" in first
    )
    assert re.split(r"  +", lines[-1]) == ["the peak", "1.2 GiB", "1.2 GiB", "56.0 MiB"]


def test_json_sums_to_torchs_own_peaks(eager: Path, kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, eager, kept, "--memory", "--format", "json", "--gate-memory", "5%")
    envelope = json.loads(out)
    rows, summary = envelope["data"]["rows"], envelope["data"]["summary"]
    peaks = [PEAKS["eager"], PEAKS["list_of_activations"]]
    assert [sum(row[f"{side}_bytes"] for row in rows) for side in ("before", "after")] == peaks
    assert [summary["before_bytes"], summary["after_bytes"]] == peaks
    assert summary["change_bytes"] == peaks[1] - peaks[0] == summary["gate"]["change_bytes"]
    assert summary["gate"]["outcome"] == "pass" and summary["is_exact"] is True
    assert rows[0]["line"] == 86 and rows[0]["kind"] == "kept" and rows[0]["before_bytes"] == 0
    changes = [abs(row["change_bytes"]) for row in rows]
    assert changes == sorted(changes, reverse=True)
    assert len({row["key"] for row in rows}) == len(rows)


def test_rows_beyond_the_limit_are_summed(
    eager: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, eager, kept, "--memory", "--limit", "2")
    assert "13 other rows" in out and out.count("memory_programs.py:") == 2
    _, out, _ = run(capsys, eager, kept, "--memory", "--limit", "2", "--format", "csv")
    assert [row["line"] for row in csv.DictReader(io.StringIO(out))] == ["86", "86"]


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["--memory"], 0),
        (["--memory", "--gate-memory", "5%"], 0),
        (["--memory", "--gate-memory", "3%"], 1),
        (["--gate-memory", "5%"], 0),
        (["--gate-memory", "3%"], 1),
        (["--gate-memory", "56MiB"], 0),
        (["--gate-memory", "55MiB"], 1),
        (["--memory", "--by", "function"], 0),
        (["--memory", "--by", "kernel"], 2),
        (["--memory", "--gate", "3%"], 2),
        (["--memory", "--budget", "step<1s"], 2),
        (["--memory", "--save", "x.json"], 2),
        (["--memory", "--step", "2"], 2),
        (["--memory", "--format", "junit"], 2),
        (["--gate-memory", "2ms"], 2),
        (["--memory", "--gate-memory", "much"], 2),
    ],
)
def test_exit_codes(
    eager: Path, kept: Path, capsys: pytest.CaptureFixture[str], options: list[str], status: int
) -> None:
    found, out, err = run(capsys, eager, kept, *options)
    assert found == status
    assert bool(err) == (status == 2) and err.count("\n") <= 1
    if "--gate-memory" in options and status < 2:
        line = next(line for line in out.splitlines() if line.startswith("gate-memory +"))
        assert line.endswith(": passed" if status == 0 else ": FAILED") and "+56.0 MiB" in line


def test_without_memory_it_cannot_be_told(eager: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = H200.parent / "fake_recording.sqlite"
    for sides in ((eager, plain), (plain, eager)):
        status, out, err = run(capsys, *sides, "--memory")
        assert (status, out) == (3, "") and err.count("\n") == 1
        assert (
            "fake_recording.sqlite has no history of torch's allocator: it needs `profiling-lab record" in err
        )


def test_ordinary_comparison_tells_the_peaks(
    eager: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, eager, kept)
    assert "  peak memory 1.2 GiB -> 1.2 GiB, +56.0 MiB (+4.6 %); --memory: by line" in out.splitlines()
    _, out, _ = run(capsys, eager, kept, "--gate-memory", "3%", "--format", "github")
    assert "::warning title=over its gate-memory::gate-memory +3%25 (36.5 MiB): +56.0 MiB: FAILED" in out
    status, out, _ = run(capsys, eager, kept, "--gate-memory", "3%", "--format", "junit")
    suite = ElementTree.fromstring(out)
    (test,) = [test for test in suite.iter("testcase") if test.get("classname") == "diff.gate-memory"]
    failure = test.find("failure")
    assert status == 1 and failure is not None and "+56.0 MiB: FAILED" in (failure.get("message") or "")


def test_snapshots_of_torch(capsys: pytest.CaptureFixture[str]) -> None:
    """They have no GPU operations, and so no times."""
    sides = (H200 / "eager.pickle.gz", H200 / "checkpointing.pickle.gz")
    status, out, _ = run(capsys, *sides, "--memory", "--format", "json", "--gate-memory", "0%")
    summary = json.loads(out)["data"]["summary"]
    assert (summary["before_bytes"], summary["after_bytes"]) == (PEAKS["eager"], PEAKS["checkpointing"])
    assert status == 0 and summary["gate"]["outcome"] == "pass"
    rows = json.loads(out)["data"]["rows"]
    unknown = [row for row in rows if row["line"] is None]
    assert unknown and all(row["no_line_because"] for row in unknown)


def test_several_recordings_and_baselines(
    eager: Path, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = tmp_path / "main.json"
    assert run(capsys, "--save", baseline, eager)[0] == 0
    _, direct, _ = run(capsys, eager, kept, "--memory", "--format", "json")
    _, kept_data, _ = run(capsys, baseline, kept, "--memory", "--format", "json")
    assert json.loads(direct)["data"] == json.loads(kept_data)["data"]
    assert run(capsys, baseline, kept, "--gate-memory", "3%")[0] == 1
    status, out, _ = run(capsys, baseline, f"{kept},{eager}", "--memory", "--gate-memory", "3%")
    assert status == 3 and "the highest of 2 recordings; the lowest has 1,276,786,176 bytes" in out
    assert "UNDECIDED: the limit lies between the recordings of a side" in out
    assert run(capsys, baseline, f"{kept},{eager}", "--memory", "--gate-memory", "3%", "--lenient")[0] == 0
    # One that an older version saved has no memory; a damaged one is refused.
    content = json.loads(baseline.read_text())
    memory = content["captures"][0].pop("memory")
    baseline.write_text(json.dumps(content))
    assert run(capsys, baseline, kept)[0] == 0
    status, _, err = run(capsys, baseline, kept, "--memory")
    assert status == 3 and "main.json has no history of torch's allocator" in err
    memory["peaks"] = [1]
    content["captures"][0]["memory"] = memory
    baseline.write_text(json.dumps(content))
    status, _, err = run(capsys, baseline, kept, "--memory")
    assert status == 4 and "does not add up to the peak" in err


def test_a_history_that_is_not_complete_decides_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for name, most in (("before", 0), ("after", 1)):
        recording = MemoryRecording()
        training(recording, 6)
        events = len(recording.allocator.events) if most else 0
        paths.append(recording.finish(most_events=events, counts=not most).write(tmp_path / f"{name}.sqlite"))
    status, out, _ = run(capsys, *paths, "--memory", "--gate-memory", "5%", "--lenient")
    assert status == 3 and "UNDECIDED: a history is not complete, so its peak may have been higher" in out
    _, out, _ = run(capsys, *paths)
    assert "no change; a history is not complete, so a peak may have been higher; --memory: by line" in out


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("by", ["line", "function"])
def test_80_columns(eager: Path, kept: Path, by: str) -> None:
    _, shown = on_screen(["diff", str(eager), str(kept), "--memory", "--by", by], 80)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= 80
    first = next(line for line in lines if "kept" in line and "memory_programs.py" in line)
    assert first.split()[-6:] == ["0", "B", "48.1", "MiB", "48.1", "MiB"] and "keep" in first


def test_a_moved_line_says_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name, line in (("before", 30), ("after", 37)):
        recording = MemoryRecording()
        recording.launch()
        for size, number in ((10, line), (20, line + 1)):
            recording.malloc(size * MIB, f"/app/train.py:9 main > /app/model.py:{number} forward")
        paths.append(recording.finish().write(tmp_path / f"{name}.sqlite"))
    _, out, _ = run(capsys, *paths, "--memory")
    assert "/app/model.py:37 forward (was line 30)" in out and "/app/model.py:38 forward (was line 31)" in out
