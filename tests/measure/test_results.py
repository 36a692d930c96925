# SPDX-License-Identifier: Apache-2.0
"""Result lines have the agreed form on every machine, with or without git, with or without a GPU."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from profiling_lab.errors import UsageError
from profiling_lab.measure import Machine, ResultsFile, Timing, copy_rate, machine, matmul_rate
from profiling_lab.measure.device import GIT_FILE, GIT_VARIABLE, git_commit

COLUMNS = [
    "benchmark", "case", "provider", "metric", "value", "unit",
    "gpu", "driver", "torch", "cudnn", "cuda", "git", "date", "run",
]  # fmt: skip
HERE = Machine("GPU X", "1.2.3", "2.10.0", None, None, "abc", "2026-01-02T03:04:05Z")


def test_lines_have_the_agreed_columns_and_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "r.jsonl"
    for _ in range(2):
        results = ResultsFile(path, HERE)
        results.add("copy", {"bytes": 4}, "ours", "rate", 1.5, "B/s")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 2
    assert list(lines[0]) == COLUMNS
    assert lines[0] | {"run": ""} == results.lines[0] | {"run": ""}
    assert lines[0]["case"] == {"bytes": 4} and lines[0]["cudnn"] is None
    assert str(lines[0]["run"]).startswith("20260102T030405Z-")


def test_without_a_path_lines_are_only_collected() -> None:
    results = ResultsFile(None, HERE)
    results.add_timing("b", {"d": 8}, "ours", Timing("ours", (10, 20, 30)))
    assert [(r["metric"], r["value"], r["unit"]) for r in results.lines] == [
        ("time", 20, "ns"),
        ("time_iqr", 10.0, "ns"),
        ("time_samples", 3, "samples"),
    ]


def test_samples_are_kept_where_they_are_asked_for() -> None:
    results = ResultsFile(None, HERE, samples=True)
    results.add_timing("b", {"d": 8}, "ours", Timing("ours", (10, 30, 20)))
    assert [r.get("samples_ns") for r in results.lines] == [[10, 30, 20], None, None]


def test_machine_on_the_cpu() -> None:
    facts = machine("cpu")
    assert facts.torch and facts.driver is None and facts.cuda is None
    assert len(facts.date) == len("2026-01-02T03:04:05Z")


def test_git_from_the_environment_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / GIT_FILE).write_text("from-file\n")
    monkeypatch.delenv(GIT_VARIABLE, raising=False)
    assert git_commit(tmp_path) == "from-file"
    monkeypatch.setenv(GIT_VARIABLE, "from-variable")
    assert git_commit(tmp_path) == "from-variable"


def test_git_is_unknown_without_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GIT_VARIABLE, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit(tmp_path) is None


def test_git_says_when_files_differ_from_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GIT_VARIABLE, raising=False)

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "f").write_text("one")
    git("add", "f")
    git("commit", "-m", "m")
    clean = git_commit(tmp_path)
    assert clean is not None and len(clean) == 12
    (tmp_path / "f").write_text("two")
    assert git_commit(tmp_path) == clean + "+changes"


def test_peaks_are_rates_not_times() -> None:
    small = copy_rate(1 << 20, device="cpu", rounds=3)
    assert 1e7 < small < 1e13
    assert 1e6 < matmul_rate("float32", 64, device="cpu", rounds=3) < 1e14
    with pytest.raises(UsageError, match="int8"):
        matmul_rate("int8", 64, device="cpu")
