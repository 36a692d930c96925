# SPDX-License-Identifier: Apache-2.0
"""profiling-lab lines --host: on a recording of a program that uses no GPU, against a count by SQL."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from cli.script_runs import record, write

from profiling_lab.cli import main

# It ends after 60 moments of sampling: nothing here depends on how fast the machine is.
PROGRAM = """
    import time
    from profiling_lab import _recorder
    def moments(): return int(_recorder.status()["sample_moments"])
    def compute(): return sum(range(3000))
    def rest(): time.sleep(0.005)
    def train():
        deadline = time.monotonic() + 600
        while moments() < 40:
            assert time.monotonic() < deadline
            compute()
        while moments() < 60:
            assert time.monotonic() < deadline
            rest()
    train()
"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cpu")
    write(folder, PROGRAM)
    done = record(folder, "--sample-python", "-o", "run.sqlite", "script.py", CUDA_VISIBLE_DEVICES="")
    assert done.code == 0 and (folder / "run.sqlite").exists(), done.err
    return folder / "run.sqlite"


def counted(path: Path) -> tuple[Counter[int], Counter[int], int]:
    """By line of script.py the samples whose innermost frame there it is, and those that pass through it."""
    file = sqlite3.connect(path)
    texts = dict(file.execute("SELECT id, value FROM StringIds"))
    rows = file.execute(
        "SELECT s.value FROM NVTX_EVENTS n JOIN StringIds s ON s.id = n.jsonTextId"
        """ WHERE s.value LIKE '{"Python Periodic Sampling"%'"""
    ).fetchall()
    file.close()
    own: Counter[int] = Counter()
    through: Counter[int] = Counter()
    for (text,) in rows:
        frames = json.loads(text)["Python Periodic Sampling"]["Frames"]
        mine = [frame["Line"] for frame in frames if texts[frame["File"]].endswith("/script.py")]
        own.update(mine[:1])
        through.update(set(mine))
    return own, through, len(rows)


def test_every_line_has_as_many_samples_as_sql_counts(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, through, total = counted(recording)
    assert total >= 30 and own
    arguments = ["lines", str(recording), "--host", "--sort", "inclusive", "--limit", "0", "--format", "json"]
    assert main(arguments) == 0
    envelope = json.loads(capsys.readouterr().out)
    rows, coverage = envelope["data"]["rows"], envelope["coverage"]
    assert {row["line"]: row["samples"] for row in rows if row["samples"]} == own
    assert {row["line"]: row["inclusive_samples"] for row in rows} == through
    assert all(row["share_frac"] == round(row["samples"] / total, 6) for row in rows)
    assert all(row["host_ns"] == row["samples"] * 1_000_000 for row in rows)
    assert coverage["samples"] == total and coverage["period_ns"] == 1_000_000
    assert coverage["samples_without_line"] == total - own.total()
    assert sum(thread["samples"] for thread in coverage["threads"]) == total


def test_what_people_and_csv_see(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, _, total = counted(recording)
    assert main(["lines", str(recording), "--host"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"run.sqlite: {total} samples of Python stacks in ")
    assert "host time is samples x 1.000 ms: of every thread, computing or waiting\n" in shown
    assert main(["lines", str(recording), "--host", "--limit", "0", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {int(row["line"]): int(row["samples"]) for row in rows} == own
    assert {"host_ns", "inclusive_ns", "inclusive_samples", "share_frac"} <= set(rows[0])


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        (
            [],
            3,
            "nothing ran on the GPU while it was recorded; `lines --host` shows its",
        ),
        (["--host", "--tree"], 2, "--tree cannot be combined with --host"),
        (["--host", "--phase", "backward"], 2, "--phase cannot be combined with --host"),
        (["--host", "--device", "0"], 2, "--device cannot be combined with --host"),
        (["--host", "--by", "kernel"], 2, "by of samples must be one of line, function"),
        (["--host", "--sort", "backward"], 2, "sort of samples must be one of all, inclusive, key"),
        (["--host", "--min-share", "1"], 2, "--min-share works only with --tree"),
        (["--host", "--range", "1000s:1001s"], 3, "has no sample in this window (1000s to 1001s)"),
    ],
)
def test_what_cannot_be_shown(
    options: list[str], status: int, sentence: str, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lines", str(recording), *options]) == status
    out, err = capsys.readouterr()
    assert not out and sentence in err and err.count("\n") == 1


@pytest.mark.parametrize("frames", ["own", "all"])
def test_flame_graphs_hold_every_sample(
    frames: str, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, _, total = counted(recording)
    collapsed, scope = tmp_path / "host.txt", tmp_path / "host.json"
    for form, path in (("collapsed", collapsed), ("speedscope", scope)):
        asked = ["export", str(recording), "--host", "--to", form, "--frames", frames, "-o", str(path)]
        assert main(asked) == 0
        assert f"{total} samples of Python stacks" in capsys.readouterr().out
    stacks = dict(line.rsplit(" ", 1) for line in collapsed.read_text().splitlines())
    assert sum(map(int, stacks.values())) == total * 1_000_000
    document = json.loads(scope.read_text())
    assert sum(sum(profile["weights"]) for profile in document["profiles"]) == total * 1_000_000
    if frames == "own":
        leaves: Counter[int] = Counter()
        for text, ns in stacks.items():
            leaf = text.rsplit(";", 1)[1]
            if leaf != "(no frame in your code)":
                leaves[int(leaf.rstrip(")").rsplit(":", 1)[1])] += int(ns) // 1_000_000
        assert leaves == own
    assert main(["export", str(recording), "--host", "--to", "perfetto", "-o", str(tmp_path / "p.json")]) == 2
    assert "--host works only with --to speedscope" in capsys.readouterr().err
