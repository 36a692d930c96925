# SPDX-License-Identifier: Apache-2.0
"""profiling-lab check"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.cli import main


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    builder = TraceBuilder()
    for i in range(30):
        builder.launch("slow", 50_000, stack=f"/app/train.py:8 main > /app/model.py:{7 + i % 2} Net.forward")
    return builder.write(tmp_path / "slow.sqlite")


@pytest.fixture
def fine(tmp_path: Path) -> Path:
    builder = TraceBuilder()
    for i in range(30):
        builder.launch(f"k{i}", 50_000, stack=f"/app/model.py:{i + 1} f")
    return builder.write(tmp_path / "fine.sqlite")


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    status = main([str(part) for part in argv])
    out, err = capsys.readouterr()
    return status, out, err


def test_findings_give_1_with_line_remedy_and_evidence(
    slow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, "check", slow, "--whole")
    assert (status, err) == (1, "")
    assert "2 findings of 1 rule" in out and "nothing found by: bound" in out
    assert "could not tell: dataloader: the trace has no operator ranges" in out
    lines = out.splitlines()
    one, other = (i for i, line in enumerate(lines) if "one line takes 50.0 %" in line)
    explains = [lines[row + 4].strip() == "explains: dominant_kernel" for row in (one, other)]
    assert sorted(explains) == [False, True], "the kernel at both lines is no finding of its own"
    row = one if explains[0] else other
    assert lines[row].split()[0] == "750.000"
    assert lines[row + 1].strip().startswith("at /app/model.py:")
    assert lines[row + 2].strip().startswith("do: look at this line first")
    assert lines[row + 3].strip().startswith("saves: at most "), "what would take its place is not known"
    assert lines[row + 5].strip().startswith("evidence: operations[") and lines[row + 5].endswith(
        "and 12 more"
    )


def test_nothing_found_gives_0_and_still_says_what_is_unknown(
    fine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, "check", fine)
    assert status == 0 and "no findings" in out and "could not tell: allocation_churn" in out


def test_all_abstaining_gives_3(fine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "check", fine, "--only", "dataloader,allocation-churn")
    assert status == 3 and "no findings" in out and "nothing found by" not in out
    assert run(capsys, "check", fine, "--only", "dataloader,sync_copy")[0] == 0


def test_json_has_everything_under_stable_keys(slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(
        capsys, "check", slow, "--whole", "--format", "json", "--only", "dominant_line,dataloader,bound"
    )
    envelope = json.loads(out)
    assert status == 1 and (envelope["schema"], envelope["command"]) == ("profiling-lab/1", "check")
    first = envelope["data"]["rows"][0]
    assert first["key"] in ("dominant_line /app/model.py:7", "dominant_line /app/model.py:8")
    assert {"rule", "cost_ns", "cost_of", "file", "line", "function", "what", "remedy", "events"} < set(first)
    assert first["cost_ns"] == 750_000 and first["events"] == 15
    assert first["evidence"][0] == {"table": "operations", "row": first["line"] - 7, "start_ns": 1_003_000 + (
        first["line"] - 7) * 50_000}  # fmt: skip
    assert envelope["coverage"]["silent"] == ["bound"]
    assert [a["rule"] for a in envelope["coverage"]["abstained"]] == ["dataloader"]


@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
def test_every_form(slow: Path, fine: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    status, out, err = run(capsys, "check", slow, "--format", form, "--limit", "1")
    assert (status, err) == (1, "") and "one line takes" in out
    status, out, err = run(capsys, "check", fine, "--format", form)
    assert (status, err) == (0, "") and out


def test_csv_rows_and_limit(slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "check", slow, "--format", "csv", "--limit", "2")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["rule"] for row in rows] == ["dominant_line", "dominant_line"]
    assert "1 of 2 rows; --limit 0 shows all" in run(capsys, "check", slow, "--limit", "1")[1]


def test_settings_change_what_is_found(slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = ("check", slow, "--only", "dominant-line")
    assert run(capsys, *only)[0] == 1
    assert run(capsys, *only, "--set", "dominant_line.share=60%")[0] == 0


@pytest.mark.parametrize(
    ("text", "status"),
    [("low", 1), ("medium", 0), ("high", 0), ("never", 0), ("60%", 0), ("40%", 1), ("1ms", 0), ("40us", 1)],
)
def test_what_fails_is_the_users_choice(
    slow: Path, capsys: pytest.CaptureFixture[str], text: str, status: int
) -> None:
    """Two lines take half of each of the 15 periods of 100 us."""
    found, out, _ = run(capsys, "check", slow, "--only", "dominant_line", "--fail-on", text)
    assert found == status and "2 findings of 1 rule" in out


def test_what_is_grave_is_a_cause_and_no_symptom(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = TraceBuilder()
    for number in range(20):
        builder.launch(f"k{number**2 % 7}", 50_000, stack="/app/train.py:9 step").gap(5_000_000)
    path = builder.write(tmp_path / "idle.sqlite")
    assert run(capsys, "check", path, "--fail-on", "high")[0] == 1
    assert run(capsys, "check", path, "--fail-on", "high", "--only", "gpu_gaps")[0] == 0


def test_annotations_for_ci(slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "check", slow, "--whole", "--only", "dominant_line", "--format", "github")
    first, second = out.splitlines()
    assert status == 1
    assert first.startswith("::notice file=/app/model.py,line=")
    assert "title=dominant_line (750.000 µs)::one line takes 50.0 %25 of the GPU time" in first
    assert {first.split("line=")[1][0], second.split("line=")[1][0]} == {"7", "8"}
    only = ("--only", "dominant_line", "--set", "dominant_line.share=60%", "--format", "github")
    assert run(capsys, "check", slow, *only) == (0, "", "")
    _, out, _ = run(capsys, "check", slow, "--only", "dominant_line,dataloader", "--format", "github")
    assert out.splitlines()[-1].startswith("::notice title=could not tell::dataloader: the trace has no")


def test_markdown_keeps_a_finding_together(slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "check", slow, "--only", "dominant_line", "--format", "md")
    row = next(line for line in out.splitlines() if "one line takes" in line)
    assert row.split(" | ")[-2] == "low" and "backward<br>at /app/model.py:" in row


def test_rows_of_one_rule_at_one_line_have_keys_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stack, builder = "/app/train.py:9 step", TraceBuilder()
    for _ in range(10):  # idle for two reasons at one line
        builder.launch("k", 10_000, stack=stack).gap(20_000)
        builder.call("cudaMalloc_v3020", call_ns=900_000, stack=stack).gap(900_000)
        builder.call("cudaFuncGetAttributes_v3020", call_ns=600_000, stack=stack).gap(600_000)
    path = builder.write(tmp_path / "idle.sqlite")
    _, out, _ = run(capsys, "check", path, "--only", "gap_cause", "--format", "json")
    rows = json.loads(out)["data"]["rows"]
    assert [row["key"] for row in rows[:2]] == [f"gap_cause /app/train.py:9{end}" for end in ("", " #2")]
    assert len({row["key"] for row in rows}) == len(rows), "a key names one row"
    assert rows[0]["cost_ns"] > rows[1]["cost_ns"] and "mostly cudaFuncGetAttributes" in rows[1]["what"]


def test_only_a_window(slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The window holds a third of the recording, and costs are shares of that."""
    _, out, _ = run(capsys, "check", slow, "--only", "dominant_kernel", "--set", "dominant_kernel.enough=5",
                    "--range", "0ms:0.5ms", "--format", "csv")  # fmt: skip
    (row,) = csv.DictReader(io.StringIO(out))
    assert int(row["cost_ns"]) <= 500_000


def test_cost_per_step_where_there_are_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = TraceBuilder()
    for number in range(5):
        builder.now_ns = start_ns = max([builder.now_ns, *builder.gpu_free_ns.values()])
        for _ in range(6):
            builder.launch("slow", 50_000, stack="/app/model.py:7 Net.forward")
        builder.range(f"ProfilerStep#{number}", start_ns, max(builder.gpu_free_ns.values()))
    path = builder.write(tmp_path / "steps.sqlite")
    status, out, _ = run(capsys, "check", path, "--whole", "--only", "dominant_line")
    assert status == 1 and "per step µs" in out
    _, out, _ = run(capsys, "check", path, "--whole", "--only", "dominant_line", "--format", "json")
    envelope = json.loads(out)
    (row,) = envelope["data"]["rows"]
    assert (row["cost_ns"], row["per_step_ns"]) == (1_500_000, 300_000)
    assert (row["severity"], row["confidence"]) == ("low", "high") and envelope["coverage"]["steps"] == 5
    assert run(capsys, "check", path, "--only", "dominant_line", "--fail-on", "350us")[0] == 0
    _, out, _ = run(capsys, "check", path, "--only", "dominant_line")
    assert "start-up: 0.3 ms before step 1 of 5 excluded; --whole includes them" in out


def test_own_decides_which_line_is_named(slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "check", slow, "--own", "train.py", "--only", "dominant_line", "--format", "csv")
    assert [(r["file"], r["line"]) for r in csv.DictReader(io.StringIO(out))] == [("/app/train.py", "8")]


def test_rules_of_the_user(fine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "my_rules.py"
    mine.write_text(
        "from profiling_lab.rules import Abstain, Rule\n"
        "RULES = (Rule('mine', 'Is it tea time?', (), lambda view: Abstain('no clock')),)\n"
    )
    status, out, _ = run(capsys, "check", fine, "--rules-from", mine)
    assert status == 0 and "could not tell: mine: no clock" in out and "nothing found by: bound" in out
    assert run(capsys, "check", fine, "--rules-from", mine, "--only", "mine")[0] == 3


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        (["check", "nowhere.sqlite"], 4, "there is no such file"),
        (["check", "{run}", "--only", "moon"], 2, "no rule 'moon'"),
        (["check", "{run}", "--rules-from", "nowhere.py"], 2, "there is no rules file"),
        (["check", "{run}", "--skip", "moon"], 2, "no rule 'moon'"),
        (["check", "{run}", "--set", "dominant_line.moon=1"], 2, "no threshold 'moon'; it has share, hot"),
        (["check", "{run}", "--fail-on", "moon"], 2, "--fail-on expects"),
        (["check", "{run}", "--steps-by", "^nothing$"], 3, "no finished range"),
        (["check", "{run}", "--range", "1s:2s"], 3, ""),
    ],
)
def test_errors_are_one_sentence_on_stderr(
    fine: Path, capsys: pytest.CaptureFixture[str], argv: list[str], status: int, says: str
) -> None:
    found, out, err = run(capsys, *(part.format(run=fine) for part in argv))
    assert (found, out) == (status, "") and says in err and err.count("\n") == 1


def test_a_trace_without_gpu_work_is_not_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = TraceBuilder().call("cudaMalloc_v3020").write(tmp_path / "empty.sqlite")
    status, out, err = run(capsys, "check", empty)
    assert (status, out) == (3, "") and "no GPU operation" in err


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    out = capsys.readouterr().out
    assert "profiling-lab check run.sqlite" in out and "3 all rules abstained" in out
