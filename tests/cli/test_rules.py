# SPDX-License-Identifier: Apache-2.0
"""profiling-lab rules"""

from __future__ import annotations

import csv
import io
import json
import textwrap
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.cli import main
from profiling_lab.cli.rules import EXAMPLES
from profiling_lab.rules import COUNTER_RULES, RULES


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    status = main(["rules", *(str(part) for part in argv)])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize("argv", [[], ["--list"]])
def test_list_shows_every_threshold_and_its_source(
    capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    status, out, _ = run(capsys, *argv, "--format", "json")
    envelope = json.loads(out)
    rows = envelope["data"]["rows"]
    assert status == 0 and envelope["command"] == "rules"
    assert [row["set"] for row in rows] == [
        f"{r.name}.{t.name}" for r in (*RULES, *COUNTER_RULES) for t in r.thresholds
    ]
    for row in rows:
        assert row["question"].endswith("?") and row["source"] and row["unit"] and row["what"]
        assert row["value"] == row["default"]


def test_one_rule_at_length(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "sync-copy")
    assert status == 0 and out.startswith("sync_copy: Which copies between host and GPU")
    assert "65,536" in out and "sync_copy.small" in out and "return as soon as they are staged" in out
    assert "dataloader" not in out
    summary = json.loads(run(capsys, "sync_copy", "--format", "json")[1])["data"]["summary"]
    assert summary["rule"] == "sync_copy" and "The cost is" in summary["about"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_is_explained(capsys: pytest.CaptureFixture[str], rule: object) -> None:
    """In two paragraphs: what it is about, and how it decides."""
    status, out, _ = run(capsys, rule.name)  # type: ignore[attr-defined]
    assert status == 0 and len(out.partition("threshold ")[0].strip().split("\n\n")) >= 2, out


def test_settings_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "dataloader", "--set", "dataloader.share=10%", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert (row["value"], row["default"]) == ("0.1", "0.05")


@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
def test_every_form(capsys: pytest.CaptureFixture[str], form: str) -> None:
    for argv in ([], ["bound"]):
        status, out, err = run(capsys, *argv, "--format", form)
        assert (status, err) == (0, "") and "bound.idle" in out.replace("\\", "")


def test_the_example_of_the_help_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my_rules.py"
    file.write_text(textwrap.dedent(EXAMPLES.partition("in my_rules.py:\n")[2]))
    assert "my_copies.large" in run(capsys, "--rules-from", file)[1]
    path = (
        TraceBuilder()
        .copy("HtoD", 3, stack="/app/a.py:4 f")
        .copy("HtoD", 9, size_bytes=8)
        .write(tmp_path / "run.sqlite")
    )
    argv = ["check", str(path), "--rules-from", str(file), "--only", "my_copies"]
    assert main(argv) == 1 and "1 large copies" in capsys.readouterr().out
    assert main([*argv, "--set", "my-copies.large=2MB"]) == 0


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["moon"], "no rule 'moon'"),
        (["bound", "--list"], "either NAME or --list"),
        (["--rules-from", "nowhere.py"], "there is no rules file"),
        (["--set", "moon.idle=1"], "no rule 'moon';"),
    ],
)
def test_errors(capsys: pytest.CaptureFixture[str], argv: list[str], says: str) -> None:
    status, out, err = run(capsys, *argv)
    assert (status, out) == (2, "") and says in err and err.count("\n") == 1
