# SPDX-License-Identifier: Apache-2.0
"""profiling-lab ab: its arguments, and what it says about recorded runs. How it records: test_ab_runs.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.cli import main
from profiling_lab.recording.turns.folder import Folder, order

MS = 1_000_000


def trace(path: Path, step_ns: int, steps: int, marked: bool = True) -> None:
    """Steps of two lines; the second takes what is left of a step."""
    builder = TraceBuilder()
    for number in range(steps):
        builder.now_ns = start_ns = max([builder.now_ns, *builder.gpu_free_ns.values()])
        builder.launch("gemm<float>", MS, stack="/app/model.py:1 Net.forward")
        builder.launch("gelu", step_ns - MS, stack="/app/model.py:87 Net.forward")
        if marked:
            builder.range(f"ProfilerStep#{number}", start_ns, max(builder.gpu_free_ns.values()))
    builder.write(path)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Writes runs of a.py and b.py as if they had been recorded. Returns the arguments that go on with it."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "b.py"):
        (tmp_path / name).touch()

    def make(
        a_ms: Sequence[float],
        b_ms: Sequence[float],
        *,
        steps: tuple[int, int] = (6, 6),
        marked: tuple[bool, bool] = (True, True),
        printed: tuple[Sequence[str], Sequence[str]] | None = None,
    ) -> list[str]:
        plan = {"A": ["a.py"], "B": ["b.py"], "commit": "", "folder": str(tmp_path), "options of record": []}
        folder = Folder.begin(tmp_path / "kept", plan)
        for turn in order(len(a_ms)):
            side, i = "ab".index(turn.side), turn.number - 1
            folder.make_room(turn)
            trace(folder.recording(turn), int((a_ms, b_ms)[side][i] * MS), steps[side], marked[side])
            (folder.of(turn) / "stdout").write_text(printed[side][i] if printed else "")
            (folder.of(turn) / "stderr").write_text("")
            folder.add(turn, 1.5)
        options = ["--keep", str(folder.path), "--continue", "--runs", str(len(a_ms))]
        return ["ab", *options, "--", "a.py", ":::", "b.py"]

    return make


def answer(
    capsys: pytest.CaptureFixture[str], arguments: list[str], *options: str
) -> tuple[int, dict[str, object], str]:
    code = main([arguments[0], "--format", "json", *options, *arguments[1:]])
    out, err = capsys.readouterr()
    return code, json.loads(out)["data"], err


@pytest.mark.parametrize(
    ("b_ms", "options", "code", "verdict"),
    [
        ((4, 4, 4), [], 0, "within the noise"),
        ((5, 5, 5), [], 1, "slower"),
        ((3, 3, 3), [], 0, "faster"),
        ((5, 5, 5), ["--gate", "30%"], 0, "slower"),
        ((5, 5, 5), ["--gate", "20%"], 1, "slower"),
        ((4.1, 3.7, 4.5), [], 0, "within the noise"),
        ((4.1, 3.7, 4.5), ["--gate", "1%"], 3, "within the noise"),
        ((4.1, 3.7, 4.5), ["--gate", "1%", "--lenient"], 0, "within the noise"),
        ((3, 3, 3), ["--budget", "line:model.py:87<1ms"], 1, "faster"),
        ((5, 5, 5), ["--whole"], 3, "undecided"),
    ],
)
def test_verdict_and_exit_code(
    recorded: Callable[..., list[str]],
    capsys: pytest.CaptureFixture[str],
    b_ms: tuple[float, ...],
    options: list[str],
    code: int,
    verdict: str,
) -> None:
    found, data, _ = answer(capsys, recorded((4, 4, 4), b_ms), *options)
    assert (found, data["summary"]["verdict"]) == (code, verdict)  # type: ignore[index]


def test_slower_line_is_named(recorded: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = recorded((4, 4, 4, 4), (5, 5, 5, 5))
    assert main(arguments) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("SLOWER: ") and "per step, +1.000 ms" in lines[0]
    assert "  before is A: a.py" in lines and "  after is B: b.py" in lines
    assert any(
        re.search(r"model.py:87 .* forward .* \+1\.000 .. \+1\.000 ms .* slower", line) for line in lines
    )
    (ratio,) = (line for line in lines if "by process" in line)
    assert ratio.endswith("from 4 pairs of runs")
    assert sum(line.startswith(("before: ", "after: ")) for line in lines) == 2


def test_json_has_everything(recorded: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    code, data, _ = answer(capsys, recorded((4,) * 4, (2,) * 4))
    summary: dict[str, object] = data["summary"]  # type: ignore[assignment]
    assert code == 0 and summary["outputs"]["state"] == "unchecked"  # type: ignore[index]
    assert summary["sides"] == {
        "a": {"command": "a.py", "commit": "", "seconds": [1.5] * 4},
        "b": {"command": "b.py", "commit": "", "seconds": [1.5] * 4},
    }
    ratio: dict[str, float] = summary["ratio"]  # type: ignore[assignment]
    assert ratio["pairs"] == 4 and ratio["low"] <= ratio["of_medians"] <= ratio["high"] < 0.6


@pytest.mark.parametrize(
    ("options", "code", "state"),
    [
        (["--same", r"loss (\S+)"], 1, "differ"),
        (["--same", r"loss (\S+)", "--rtol", "0.1"], 0, "same"),
        (["--same-stdout", "--rtol", "0.1"], 0, "same"),
        (["--same", r"accuracy (\S+)"], 3, "undecided"),
        ([], 0, "unchecked"),
    ],
)
def test_outputs_count(
    recorded: Callable[..., list[str]],
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    code: int,
    state: str,
) -> None:
    arguments = recorded((4, 4), (3, 3), printed=(["loss 2.00\n"] * 2, ["loss 2.01\n"] * 2))
    found, data, _ = answer(capsys, arguments, *options)
    assert (found, data["summary"]["outputs"]["state"]) == (code, state)  # type: ignore[index]


def test_different_output_is_said_first(
    recorded: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = recorded((4, 4), (3, 3), printed=(["loss 2.00\n"] * 2, ["loss 2.01\n"] * 2))
    assert main(["ab", "--same", r"loss (\S+)", *arguments[1:]]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("OUTPUTS DIFFER") and lines[1].startswith("FASTER")


def test_slower_stays_a_regression_where_outputs_are_undecided(
    recorded: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ab", "--same", "nothing", *recorded((4, 4), (5, 5))[1:]]) == 1


def test_runs_without_steps_are_compared_as_a_whole(
    recorded: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    code, data, _ = answer(capsys, recorded((4,) * 4, (6,) * 4, steps=(1, 1), marked=(False, False)))
    assert (code, data["summary"]["verdict"]) == (1, "slower")  # type: ignore[index]


def test_steps_of_one_side_alone_make_whole_runs_the_measure(
    recorded: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    code, data, _ = answer(capsys, recorded((4,) * 4, (6,) * 4, steps=(2, 2), marked=(True, False)))
    summary: dict[str, object] = data["summary"]  # type: ignore[assignment]
    assert code == 1 and summary["before"]["count"] == summary["after"]["count"] == 4  # type: ignore[index]
    assert "whole runs are compared" in summary["notes"][0]  # type: ignore[index]


def test_twice_the_steps_is_other_work(
    recorded: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    code, data, _ = answer(capsys, recorded((4, 4), (4, 4), steps=(6, 12)))
    assert (code, data["summary"]["verdict"]) == (3, "not comparable")  # type: ignore[index]


def test_sides_take_turns() -> None:
    assert [f"{turn.side}{turn.number}" for turn in order(4)] == [
        "a1",
        "b1",
        "b2",
        "a2",
        "a3",
        "b3",
        "b4",
        "a4",
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--", "a.py"], "expected two programs, A ::: B, not 1"),
        (["--"], "expected two programs, A ::: B, not none"),
        (["--", "a.py", ":::", "a.py", ":::", "a.py"], "expected two programs, A ::: B, not 3"),
        (["--", "a.py", ":::"], "expected two programs, A ::: B, not 1"),
        (["--git", "HEAD", "--", "a.py", ":::", "a.py", ":::", "a.py"], "one program after --, or two"),
        (["--same", "(", "--", "a.py", ":::", "a.py"], "--same expects a regular expression"),
        (["--rtol", "0.1", "--", "a.py", ":::", "a.py"], "--rtol and --atol need --same"),
        (["--gate", "soon", "--", "a.py", ":::", "a.py"], "expected a limit like 3%"),
        (["--budget", "x", "--", "a.py", ":::", "a.py"], "expected a budget like"),
        (["--continue", "--", "a.py", ":::", "a.py"], "--continue needs --keep"),
        (["--link", "data", "--", "a.py", ":::", "a.py"], "--link needs --git"),
        (["--whole", "--steps-by", "x", "--", "a.py", ":::", "a.py"], "--whole cannot be combined"),
        (["--record=-o x.sqlite", "--", "a.py", ":::", "a.py"], "--output of record cannot be used"),
        (["--record=--dormant", "--", "a.py", ":::", "a.py"], "--dormant of record cannot be used"),
        (["--record='", "--", "a.py", ":::", "a.py"], "No closing quotation"),
        (["--", "-", ":::", "a.py"], "A cannot be a script on the standard input"),
        (["--git", "HEAD", "--", "a.py"], "needs a git repository"),
        (["--keep", "a.py", "--", "a.py", ":::", "a.py"], "is a file"),
        (["--keep", "full", "--", "a.py", ":::", "a.py"], "is not empty"),
        (["--keep", "none", "--continue", "--", "a.py", ":::", "a.py"], "holds no comparison"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "a.py").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    assert main(["ab", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and sentence in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "options",
    [["--runs", "0"], ["--runs", "two"], ["--rtol", "-1"], ["--atol", "nan"], ["--record=--nonsense"]],
)
def test_options_are_checked_before_anything_runs(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").touch()
    with pytest.raises(SystemExit) as ended:
        main(["ab", *options, "--", "a.py", ":::", "a.py"])
    assert ended.value.code == 2


def test_missing_script_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").touch()
    assert main(["ab", "--keep", "kept", "--", "a.py", ":::", "b.py"]) == 4
    assert "B: there is no script or program b.py" in capsys.readouterr().err
    assert not (tmp_path / "kept").exists()


def test_one_rank_of_a_job_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["ab", "--", "a.py", ":::", "b.py"]) == 2
    assert "with the launcher in A and B" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "code", "sentence"),
    [
        (lambda held: {**held, "plan": {**held["plan"], "B": ["c.py"]}}, 2, "its B is ['c.py']"),
        (lambda held: {**held, "schema": "profiling-lab-ab/0"}, 4, "another version"),
        (lambda held: {"plan": {}}, 4, "is damaged"),
    ],
)
def test_only_the_same_comparison_goes_on(
    recorded: Callable[..., list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, dict[str, object]]], object],
    code: int,
    sentence: str,
) -> None:
    arguments = recorded((4, 4), (4, 4))
    held = tmp_path / "kept" / "ab.json"
    held.write_text(json.dumps(change(json.loads(held.read_text()))))
    assert main(arguments) == code
    assert sentence in capsys.readouterr().err


def test_a_comparison_is_not_overwritten(
    recorded: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [word for word in recorded((4, 4), (4, 4)) if word != "--continue"]
    assert main(arguments) == 2
    assert "--continue goes on with it" in capsys.readouterr().err
