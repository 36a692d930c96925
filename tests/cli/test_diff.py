# SPDX-License-Identifier: Apache-2.0
"""profiling-lab diff"""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from builders import TraceBuilder

from profiling_lab.cli import main

MS = 1_000_000


def training(path: Path, gelu_ns: int, steps: int = 6, gpu: str = "Test GPU", lines: int = 2) -> Path:
    """Steps of `lines` lines of one kernel each; the last line is the one that a change is about."""
    builder = TraceBuilder()
    for number in range(steps):
        builder.now_ns = start_ns = max([builder.now_ns, *builder.gpu_free_ns.values()])
        for line in range(1, lines):
            builder.launch("gemm<float>", 2 * MS + line, stack=f"/app/model.py:{line} Net.forward")
        builder.launch("gelu", gelu_ns, stack="/app/model.py:87 Net.forward")
        builder.range(f"ProfilerStep#{number}", start_ns, max(builder.gpu_free_ns.values()))
    builder.row("TARGET_INFO_GPU", vmId=0, id=0, name=gpu)
    return builder.write(path)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return training(tmp_path / "before.sqlite", MS)


@pytest.fixture
def after(tmp_path: Path) -> Path:
    return training(tmp_path / "after.sqlite", 2 * MS)


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    status = main(["diff", *(str(part) for part in argv)])
    out, err = capsys.readouterr()
    return status, out, err


def test_table_opens_with_the_verdict(before: Path, after: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, before, after)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    # A step is its two kernels and the first call.
    assert lines[0] == (
        "SLOWER: 3.003 ms -> 4.003 ms per step, +1.000 ms (+33.3 %), 95 % interval +1.000 .. +1.000 ms"
    )
    assert "median of 6 and 6 steps (ProfilerStep ranges)" in lines[1]
    assert any(line.startswith("before: before.sqlite: 18.000 ms of GPU time") for line in lines)
    row = next(line for line in lines if "model.py:87" in line)
    assert re.split(r"  +", row)[1:6] == ["forward", "1.000", "2.000", "1.000", "+1.000 .. +1.000 ms"]
    assert row.endswith("slower")
    assert lines[lines.index(row) + 1].strip() == "+1.000 ms gelu"
    assert re.split(r"  +", lines[-1])[:4] == ["the median step", "3.003", "4.003", "1.000"]


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ([], 0),
        (["--gate", "3%"], 1),
        (["--gate", "900us"], 1),
        (["--gate", "50%"], 0),
        (["--gate", "2ms"], 0),
        (["--budget", "line:model.py:87<3ms"], 0),
        (["--budget", "line:model.py:87<1.5ms"], 1),
        (["--gate", "50%", "--budget", "step<4ms"], 1),
        (["--gate", "soon"], 2),
        (["--budget", "line:model.py:88<3ms"], 2),
        (["--allow", "anything"], 2),
        (["--steps-by", "^nothing$"], 3),
    ],
)
def test_exit_codes(
    before: Path, after: Path, capsys: pytest.CaptureFixture[str], options: list[str], status: int
) -> None:
    found, _, err = run(capsys, before, after, *options)
    assert found == status
    assert bool(err) == (status in (2, 3))


def test_same_file_twice(before: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, before, before, "--gate", "0%")
    assert status == 0 and out.startswith("NO CHANGE: 3.003 ms -> 3.003 ms per step\n")


def test_not_comparable(tmp_path: Path, before: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = training(tmp_path / "other.sqlite", 9 * MS, gpu="Other GPU")
    status, out, _ = run(capsys, before, other, "--gate", "3%", "--annotate")
    assert status == 3
    assert out.startswith("NOT COMPARABLE: GPU: 1 x Test GPU before, 1 x Other GPU after\n")
    assert "gate" not in out and "model.py:87" in out
    assert run(capsys, before, other, "--gate", "3%", "--allow", "gpu")[0] == 1


def test_too_few_steps_are_not_enough_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (training(tmp_path / f"{i}.sqlite", i * MS, steps=2) for i in (1, 2))
    status, out, _ = run(capsys, one, two, "--gate", "3%")
    assert status == 3 and out.startswith("NO VERDICT") and "UNDECIDED: too few steps" in out
    assert run(capsys, one, two)[0] == 0, "nothing was asked that could not be answered"
    # Several recordings of each side bring the steps that one lacks, given in either way.
    more = [training(tmp_path / f"{i}{i}.sqlite", i * MS, steps=2) for i in (1, 2)]
    assert run(capsys, f"{one},{more[0]}", f"{two},{more[1]}", "--gate", "3%")[0] == 1
    for sides in (
        ("--before", one, "--before", more[0], "--after", two, "--after", more[1]),
        ("--before", one, more[0], "--after", two, more[1]),
    ):
        status, out, _ = run(capsys, *sides, "--gate", "3%")
        assert status == 1 and "median of 4 and 4 steps" in out


def test_two_programs_are_not_a_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They run some kernels of the same names, so nothing refuses them: `ab A ::: B` may be two files."""

    def program(name: str, file: str, *more: str) -> Path:
        builder = TraceBuilder()
        for number in range(5):
            start_ns = builder.now_ns
            builder.launch("gemm", MS, stack=f"/app/{file}:7 main")
            for kernel in more:
                builder.launch(kernel, 20 * MS, stack=f"/app/{file}:9 main")
            builder.range(f"ProfilerStep#{number}", start_ns, max(builder.gpu_free_ns.values()))
        return builder.write(tmp_path / name)

    one, same = program("one.sqlite", "train.py"), program("same.sqlite", "train.py")
    other = program("other.sqlite", "serve.py", "attention")
    status, out, _ = run(capsys, one, other)
    assert status == 0 and "note: 0.0 % of the GPU time is in lines that both have: these look" in out
    assert "; --by kernel compares the kernels that both run" in out
    assert json.loads(run(capsys, one, other, "--format", "json")[1])["data"]["summary"]["common_frac"] == 0
    found = run(capsys, one, other, "--by", "kernel")[1]
    assert "note: 9.1 % of the GPU time is in kernels that both have: these look like two programs" in found
    assert "--by kernel" not in found
    assert "that both have" not in run(capsys, one, same)[1]


def test_noise_is_no_pass_unless_lenient(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def noisy(name: str, times: tuple[int, ...]) -> Path:
        builder = TraceBuilder()
        for number, ns in enumerate(times):
            builder.now_ns = start_ns = max([builder.now_ns, *builder.gpu_free_ns.values()])
            builder.launch("gelu", ns * MS, stack="/app/model.py:87 f")
            builder.range(f"ProfilerStep#{number}", start_ns, max(builder.gpu_free_ns.values()))
        return builder.write(tmp_path / name)

    files = noisy("a.sqlite", (10, 14, 9, 15, 12, 11)), noisy("b.sqlite", (11, 15, 10, 14, 13, 12))
    status, out, err = run(capsys, *files, "--gate", "3%", "--annotate")
    assert status == 3 and out.startswith("WITHIN THE NOISE: ")
    assert "GPU time grew" not in err, "the line's median grew by 8 %, inside of the noise: no warning"
    assert err.count("::warning") == 1 and "title=gate undecided::gate +3%25" in err
    assert "UNDECIDED: the limit lies inside of the noise" in out
    assert run(capsys, *files, "--gate", "3%", "--lenient")[0] == 0
    assert run(capsys, *files)[0] == 0, "without a limit there is nothing to decide"
    for form in ("table", "csv", "json", "md"):  # one word, whoever reads it
        assert "within the noise" in run(capsys, *files, "--format", form)[1], form
    data = json.loads(run(capsys, *files, "--format", "json")[1])["data"]
    assert data["summary"]["verdict"] == data["rows"][0]["state"] == "within the noise"


def test_many_rows_are_many_chances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def lines(name: str, longer_ns: int, count: int) -> Path:
        builder = TraceBuilder()
        for number in range(6):
            builder.now_ns = start_ns = max([builder.now_ns, *builder.gpu_free_ns.values()])
            for line in range(1, count + 1):
                builder.launch("gelu", MS + number + longer_ns, stack=f"/app/model.py:{line} f")
            builder.range(f"ProfilerStep#{number}", start_ns, max(builder.gpu_free_ns.values()))
        return builder.write(tmp_path / name)

    for count, noted in ((20, True), (5, False)):
        files = lines(f"a{count}.sqlite", 0, count), lines(f"b{count}.sqlite", MS // 10, count)
        assert (f"each of {count} rows has its own interval" in run(capsys, *files)[1]) == noted


def test_json_holds_everything(before: Path, after: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--gate", "3%", "--budget", "line:model.py:87<1ms", "--format", "json", "--limit", "1")
    status, out, _ = run(capsys, before, after, *options)
    envelope = json.loads(out)
    assert status == 1 and envelope["schema"] == "profiling-lab/1" and envelope["command"] == "diff"
    assert envelope["trace"] == {"before": [str(before)], "after": [str(after)]}
    summary = envelope["data"]["summary"]
    assert summary["verdict"] == "slower" and summary["change_ns"] == MS
    assert summary["interval"] == {"low_ns": MS, "high_ns": MS}
    assert summary["gate"]["outcome"] == summary["budgets"][0]["outcome"] == "fail"
    assert {check["name"]: check["state"] for check in summary["checks"]}["gpu"] == "same"
    assert summary["steps"]["before"] == [{"sign": "ProfilerStep", "step_ns": [3_003_001] * 6}]
    rows = envelope["data"]["rows"]
    assert envelope["data"]["total_matched"] == len(rows) == 3, "two more rows are no longer than their sum"
    assert rows[0] == {
        "key": "/app/model.py:87 forward",
        "kind": "line",
        "file": "/app/model.py",
        "function": "Net.forward",
        "line": 87,
        "line_before": 0,
        "phase": "forward",
        "before_ns": MS,
        "after_ns": 2 * MS,
        "change_ns": MS,
        "low_ns": MS,
        "high_ns": MS,
        "before_frac": 0.333000,
        "after_frac": 0.499625,
        "state": "slower",
        "parts": [{"name": "gelu", "file": "", "line": 0, "before_ns": MS, "after_ns": 2 * MS}],
    }
    assert sum(row["change_ns"] for row in rows) == summary["change_ns"]
    assert [part["gpu_ns"] for part in envelope["coverage"]["after"]] == [6 * (4 * MS + 1)]


def test_cut_tables_say_so_and_still_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [training(tmp_path / f"{i}.sqlite", i * MS, lines=9) for i in (1, 2)]
    _, out, _ = run(capsys, *files, "--limit", "4")
    lines = out.splitlines()
    assert lines[-1] == "6 of 10 rows; --limit 0 shows all"
    assert lines[-4].startswith("6 other rows")
    _, out, _ = run(capsys, *files, "--limit", "0", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 10 and sum(int(row["change_ns"]) for row in rows) == MS


def test_markdown_for_a_pull_request(before: Path, after: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, before, after, "--gate", "3%", "--format", "md")
    assert status == 1 and out.startswith("SLOWER: ")
    assert "| median | phase | before ms |" in out
    # A paragraph after a list needs a blank line, or it becomes part of the last item.
    lines = out.splitlines()
    assert all(
        lines[i - 1] == "" for i, line in enumerate(lines) if line.startswith(("gate", "before:", "after:"))
    )
    assert "<br>+1.000 ms gelu" in out


def test_annotations_name_the_line_in_the_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = []
    for ns in (1, 2):
        builder = TraceBuilder()
        for number in range(4):
            builder.now_ns = start_ns = max([builder.now_ns, *builder.gpu_free_ns.values()])
            builder.launch("gelu", ns * MS, stack=f"{tmp_path}/src/model,1.py:87 f")
            builder.range(f"ProfilerStep#{number}", start_ns, max(builder.gpu_free_ns.values()))
        files.append(builder.write(tmp_path / f"{ns}.sqlite"))
    monkeypatch.chdir(tmp_path)
    _, out, err = run(capsys, *files, "--annotate", "--budget", "line:model,1.py:87<1ms", "--format", "csv")
    grew, over = err.splitlines()
    assert grew.startswith(
        "::warning file=src/model%2C1.py,line=87,title=GPU time grew::forward: 1.000 ms -> "
    )
    assert over.startswith("::warning file=src/model%2C1.py,line=87,title=over its budget::budget line:")
    assert "95 %25 interval" in grew and "::warning" not in out
    assert run(capsys, files[1], files[0], "--annotate")[2] == "", "what got faster is no warning"


def test_both_sides_are_needed_and_given_once(before: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for files in (
        [],
        [before],
        [before] * 3,
        [before, before, "--before", before],
        ["--after", before],
        [",", ","],
    ):
        status, out, err = run(capsys, *files)
        assert status == 2 and out == "" and err.startswith("profiling-lab diff: expected "), files


def test_missing_file_is_unreadable(before: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, before, "no.sqlite")
    assert status == 4 and "no.sqlite" in err


@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
@pytest.mark.parametrize("by", ["line", "function", "operator", "kernel"])
def test_every_grouping_in_every_form(
    before: Path, after: Path, capsys: pytest.CaptureFixture[str], form: str, by: str
) -> None:
    status, out, err = run(capsys, before, after, "--by", by, "--format", form)
    assert (status, err) == (0, "") and ("gelu" if by in ("kernel", "operator") else "model.py") in out


def test_a_real_improvement_passes_the_gate(captures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [captures / f"resnet50_num_workers_{n}.pt.trace.json.gz" for n in (0, 4)]
    status, out, _ = run(capsys, *files, "--gate", "3%")
    assert status == 0 and out.startswith("FASTER: 176.273 ms -> 126.548 ms per step, -49.725 ms (-28.2 %)")
    assert "yet the slowest step after, 181.565 ms, is slower than every step before" in out
    assert run(capsys, *reversed(files), "--gate", "3%")[0] == 1


def test_a_baseline_replaces_its_recording(
    before: Path, after: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = tmp_path / "main.json"
    status, out, err = run(capsys, "--save", baseline, before)
    assert (status, out) == (0, "") and err == f"saved 6 steps of 1 recording in {baseline}\n"
    assert baseline.stat().st_size < 10_000
    direct, kept = [
        run(capsys, left, after, "--gate", "3%", "--format", "json") for left in (before, baseline)
    ]
    theirs, ours = json.loads(direct[1]), json.loads(kept[1])
    assert (direct[0], kept[0]) == (1, 1) and ours["trace"]["before"] == [str(baseline)]
    assert ours["data"] == theirs["data"] and ours["coverage"] == theirs["coverage"]
    assert run(capsys, baseline, before, "--gate", "0%")[0] == 0
    assert "before: before.sqlite in main.json: 18.000 ms" in run(capsys, baseline, after)[1]


def test_a_baseline_of_one_part_is_not_compared_with_another(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = tmp_path / "late.json"
    assert run(capsys, "--save", baseline, before, "--step", "1:")[0] == 0
    status, out, _ = run(capsys, baseline, before)
    assert status == 3
    assert out.startswith("NOT COMPARABLE: part of the recording: --step 1: before, all of it after\n")
    assert run(capsys, baseline, before, "--step", "1:", "--gate", "0%")[0] == 0


def test_the_side_after_becomes_the_next_baseline(
    before: Path, after: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = tmp_path / "main.json"
    status, _, err = run(capsys, before, after, "--save", baseline, "--gate", "3%")
    assert status == 1 and "saved 6 steps" in err
    assert run(capsys, baseline, after)[1].startswith("NO CHANGE")
    assert run(capsys, baseline, before, "--save", baseline, "--overwrite")[0] == 0
    assert run(capsys, baseline, before)[1].startswith("NO CHANGE")


def test_a_baseline_of_several_recordings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [training(tmp_path / f"{i}.sqlite", ns, steps=4) for i, ns in enumerate((MS, MS, 2 * MS))]
    assert run(capsys, "--save", tmp_path / "b.json", f"{runs[0]},{runs[1]}")[0] == 0
    assert "median of 8 and 4 steps" in run(capsys, tmp_path / "b.json", runs[2])[1]


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        (["--save", "{tmp}/b.json", "{before}", "--gate", "3%"], 2, "and --budget need two sides"),
        (["--save", "{tmp}/no/b.json", "{before}"], 2, "no does not exist"),
        (
            ["--save", "{tmp}/kept.json", "{before}"],
            2,
            "exists already; choose another name or pass --overwrite",
        ),
        (["--save", "{before}", "{before}"], 2, "before.sqlite is the trace itself"),
        (["--save", "{before}", "{tmp}/kept.json", "{before}", "--overwrite"], 2, "is the trace itself"),
        (["{tmp}/kept.json", "{before}", "--own", "model.py"], 2, "without --own and --steps-by"),
        (["{tmp}/cut.json", "{before}"], 4, "is no baseline of this version, or is damaged"),
        (["{tmp}/wrong.json", "{before}"], 4, "do not add up"),
        (["{tmp}/later.json", "{before}"], 4, "profiling-lab/baseline-9"),
        (["{tmp}/kept.json"], 2, "expected two FILEs"),
    ],
)
def test_baselines_that_do_not_fit(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], status: int, says: str
) -> None:
    run(capsys, "--save", tmp_path / "kept.json", before)
    kept = (tmp_path / "kept.json").read_text()
    (tmp_path / "cut.json").write_text(kept[: len(kept) // 2])
    (tmp_path / "wrong.json").write_text(kept.replace('"whole_ns":[3003001', '"whole_ns":[3003002'))
    (tmp_path / "later.json").write_text(kept.replace("baseline-1", "baseline-9"))
    found, out, err = run(capsys, *(part.format(tmp=tmp_path, before=before) for part in argv))
    assert (found, out) == (status, "") and says in err and err.count("\n") == 1


def test_long_recordings_keep_steps_spread_evenly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = training(tmp_path / "long.sqlite", MS, steps=450)
    run(capsys, "--save", tmp_path / "b.json", path)
    kept = json.loads((tmp_path / "b.json").read_text())["captures"][0]
    assert (len(kept["step_ns"]), kept["of_steps"]) == (200, 450)
    assert run(capsys, tmp_path / "b.json", path, "--allow", "steps")[1].startswith("NO ")


def test_annotations_as_the_output(before: Path, after: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, before, after, "--format", "github", "--gate", "3%")
    assert (status, err) == (1, "")
    line, gate = out.splitlines()
    assert gate.startswith("::warning title=over its gate::gate +3%25") and "FAILED" in gate
    assert line.startswith("::warning file=/app/model.py,line=87,title=GPU time grew::forward: 1.000 ms -> ")
    assert run(capsys, after, before, "--format", "github")[1] == ""


def test_junit(tmp_path: Path, before: Path, after: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ("--gate", "3%", "--budget", "line:model.py:87<3ms", "--budget", "step<4ms", "--format", "junit")
    status, out, _ = run(capsys, before, after, *limits)
    suite = ElementTree.fromstring(out)
    assert status == 1 and {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "2", "errors": "0", "skipped": "0"}  # fmt: skip
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert cases["+3%"].find("failure") is not None and cases["step<4ms"].find("failure") is not None
    line = cases["line:model.py:87<3ms"]
    assert line.find("failure") is None and (line.get("file"), line.get("line")) == ("/app/model.py", "87")
    other = training(tmp_path / "other.sqlite", 9 * MS, gpu="Other GPU")
    status, out, _ = run(capsys, before, other, *limits)
    suite = ElementTree.fromstring(out)
    assert status == 3 and (suite.get("errors"), suite.get("skipped")) == ("1", "3")


def test_one_recording_a_side_says_what_it_cannot_know(
    before: Path, after: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note = "one recording a side: how much runs differ is not in the interval"
    assert note in run(capsys, before, after)[1] and note not in run(capsys, before, before)[1]


def test_work_without_a_line_is_grouped_by_operator_then_kernel(
    captures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = captures / "autograd_nvtx_h200.sqlite"
    _, out, _ = run(capsys, path, path, "--format", "json", "--limit", "0")
    kinds = {row["key"]: row["kind"] for row in json.loads(out)["data"]["rows"]}
    assert kinds["aten::mm forward"] == kinds["aten::mm backward"] == "operator"
    assert "kernel" in kinds.values(), "some were launched outside of every operator"
    _, out, _ = run(capsys, path, path, "--by", "operator", "--format", "json", "--limit", "0")
    assert {row["kind"] for row in json.loads(out)["data"]["rows"]} <= {"operator", "kernel", "idle", "rest"}


def test_a_journal_has_a_line_for_each_turn(
    before: Path, after: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "turns.jsonl"
    for note, sides in (("a larger tile", (before, after)), ("back again", (after, before))):
        status, _, err = run(capsys, *sides, "--journal", journal, "--note", note)
        assert status == 0 and "is in" in err
    turns = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [(turn["turn"], turn["note"], turn["verdict"]) for turn in turns] == [
        (1, "a larger tile", "slower"),
        (2, "back again", "faster"),
    ]
    assert turns[0]["before"] == [str(before)] and turns[0]["change_ns"] == -turns[1]["change_ns"] == MS
    assert turns[0]["before_ns"] + MS == turns[0]["after_ns"] and turns[0]["sentence"].startswith("SLOWER: ")


def test_a_journal_that_is_something_else_is_left_alone(
    before: Path, after: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("my notes\n")
    status, _, err = run(capsys, before, after, "--journal", other)
    assert status == 2 and "is no journal of diff" in err and other.read_text() == "my notes\n"
    status, _, err = run(capsys, before, after, "--note", "x")
    assert status == 2 and "expected --journal" in err
    status, _, err = run(capsys, before, after, "--journal", tmp_path / "none" / "turns.jsonl")
    assert status == 2 and "cannot be written" in err
    status, _, err = run(capsys, before, after, "--memory", "--journal", tmp_path / "turns.jsonl")
    assert status == 2 and "--memory" in err and not (tmp_path / "turns.jsonl").exists()
