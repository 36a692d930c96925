# SPDX-License-Identifier: Apache-2.0
"""What fits on a terminal: numbers are whole at every width, and line, total and share are there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from builders import TraceBuilder
from package_root import PACKAGE_ROOT
from screen import on_screen

from profiling_lab.cli import COMMANDS, main

REPO = Path(__file__).resolve().parents[2]
E17 = REPO / "profiling_lab/exercises/e17_python_backtrace/recorded"
DEMO, NSYS = str(E17 / "demo_h200.sqlite"), str(E17 / "nsys_h200.sqlite")
BEFORE, AFTER = (str(REPO / "docs/fast_ops" / f"{side}_h200.sqlite") for side in ("before", "after"))
WIDTHS = (60, 80, 100, 160)
NUMBER = re.compile(r"(?<![\w.,])[-+]?\d[\d.,]*\d|(?<![\w.,])\d(?![\w.,])")
DIGITS = re.compile(r"[-+]?\d+(?:[.,]\d+)*")
STYLE = re.compile(r"\x1b\[[0-9;]*m")

# A command, and what its screen keeps whatever the width: line, total and share.
SCREENS = {
    "lines": (["lines", DEMO], ["model.py:87", "39.791", "45.3 %"]),
    "tree": (["lines", DEMO, "--tree"], ["model.py:87", "39.791", "45.3 %"]),
    "phase": (["lines", DEMO, "--phase", "forward"], ["model.py:87", "38.845"]),
    "diff": (
        ["diff", BEFORE, AFTER],
        ["/model.py:87", "-8.639", "0.2 %", "faster", "GPU idle", "68.4 %", "slower", "FASTER: "],
    ),
    "check": (["check", BEFORE], ["model.py:87", "43.465", "8.692"]),
    "kernels": (["kernels", NSYS], ["model.py:forward() line 87", "38.791", "44.2 %"]),
    "steps": (["steps", BEFORE], ["step 2", "13.220", "3.9 %"]),
    "gaps": (["gaps", BEFORE], ["/transformer.py:65", "323.226", "7.1 %"]),
    "gap": (["gaps", BEFORE, "--by", "gap"], []),
}

pytestmark = pytest.mark.usefixtures("terminal")


PIPED: dict[tuple[str, ...], str] = {}


def in_a_pipe(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    if tuple(words) not in PIPED:
        main(words)
        PIPED[tuple(words)] = capsys.readouterr().out
    return PIPED[tuple(words)]


def check_screen(words: list[str], columns: int, kept: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The screen without styles."""
    whole = in_a_pipe(words, capsys)
    _, shown = on_screen(words, columns)
    shown = STYLE.sub("", shown)
    assert max(map(len, shown.splitlines())) <= columns
    table, _, note = shown.partition("\nleft out at ")
    assert set(NUMBER.findall(table)) <= set(DIGITS.findall(whole)), "a number was cut"
    folded = " ".join(table.split())
    assert [text for text in kept if text not in folded] == []
    titles = [title.strip() for title in note.partition(":")[2].partition(";")[0].split(",")] if note else []
    if not note:
        assert set(NUMBER.findall(whole)) <= set(NUMBER.findall(table)), "a column is missing without a word"
    else:
        assert all(" ".join(title.split()) in " ".join(whole.split()) for title in titles)
        assert "--format csv" in " ".join(note.split())
    return shown


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_loses_no_number_and_says_what_it_leaves_out(
    name: str, columns: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words, kept = SCREENS[name]
    check_screen(words, columns, kept, capsys)


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize(
    ("by", "kept"), [("rank", "29.338"), ("step", "29.344"), ("line", "28.412")], ids=["rank", "step", "line"]
)
def test_ranks_fit_too(
    by: str, kept: str, columns: int, captures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ranks", str(captures / "fsdp_inference_2xh100.sqlite"), "--by", by, "--jobs", "1"]
    check_screen(words, columns, [kept], capsys)


def test_left_out_columns_go_by_priority(capsys: pytest.CaptureFixture[str]) -> None:
    shown = check_screen(["lines", DEMO], 60, ["forward", "backward"], capsys)
    gone = "function, optimizer ms, with calls ms, kernels, copies"
    assert f"left out at 60 columns: {gone}; a wider terminal" in " ".join(shown.split())
    shown = check_screen(["lines", DEMO], 100, ["function", "optimizer"], capsys)
    assert "left out at 100 columns: kernels, copies;" in shown
    assert "left out" not in check_screen(["lines", DEMO], 160, ["copies"], capsys)


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_kernel_name_of_300_characters_folds(
    columns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "kernel_" + "".join(chr(ord("a") + i % 26) for i in range(293))
    run = TraceBuilder().launch(name, 123_456, stack="/app/train.py:5 main").write(tmp_path / "run.sqlite")
    shown = check_screen(["kernels", str(run)], columns, ["123.456", "100.0 %"], capsys)
    column = "".join(line.split()[0] for line in shown.splitlines() if re.match(r"\w+( |$)", line))
    assert name in column


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_path_loses_folders_on_the_left(
    columns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"/{'/'.join(f'folder{chr(97 + i)}' for i in range(20))}/model.py"
    run = TraceBuilder().launch("k", 1000, stack=f"{place}:12345 main").write(tmp_path / "run.sqlite")
    shown = check_screen(["lines", str(run)], columns, ["/model.py:12345", "100.0 %"], capsys)
    assert re.search(r"^…/(folder\w/)*model.py:12345 ", shown, re.M)
    assert columns == 60 or "/foldert/model.py:12345" in shown, "as many folders as fit"


def test_columns_says_how_wide_a_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "left out" not in on_screen(["lines", DEMO], 60)[1]


def test_a_file_or_pipe_is_as_wide_as_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = in_a_pipe(["diff", BEFORE, AFTER], capsys)
    monkeypatch.setenv("COLUMNS", "60")
    main(["diff", BEFORE, AFTER])
    assert capsys.readouterr().out == whole and "left out" not in whole


def test_a_terminal_has_the_colours_of_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    _, shown = on_screen(["lines", DEMO], 100)
    assert "\x1b[1;33m100.0 %\x1b[0m has a line" in shown and "\x1b[1mline" in shown
    monkeypatch.setenv("NO_COLOR", "1")
    _, plain = on_screen(["lines", DEMO], 100)
    assert plain == STYLE.sub("", shown)


def test_a_name_cannot_move_the_cursor(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("bad\x1b[2Jname\nnext", 1000, stack="/app/a.py:1 main")
    _, shown = on_screen(["kernels", str(builder.write(tmp_path / "run.sqlite"))], 100)
    assert "\x1b[2J" not in shown and "bad\\x1b[2Jname\\nnext" in shown


def test_where_there_is_no_micro_it_is_us() -> None:
    _, shown = on_screen(["gaps", BEFORE], 80, encoding="ascii")
    assert "idle us" in " ".join(shown.split()) and ".../transformer.py:65" in shown and "\\x" not in shown
    shown = STYLE.sub("", on_screen(["demo"], 80, encoding="ascii")[1])
    assert "   `-- Python: model.py" in shown and "us each" in " ".join(shown.split())


def test_json_stays_json_in_ascii(tmp_path: Path) -> None:
    run = TraceBuilder().launch("kernel_µ", 1000, stack="/app/a.py:1 main").write(tmp_path / "run.sqlite")
    _, shown = on_screen(["kernels", str(run), "--format", "json"], 80, encoding="ascii")
    assert json.loads(shown)["data"]["rows"][0]["name"] == "kernel_µ"


ASCII = """
import json, sys
from profiling_lab.cli import main
failed = []
for words in json.loads(sys.argv[1]):
    print("##", *words, flush=True)
    try:
        main(words)
    except SystemExit:
        pass
    except BaseException as error:
        failed.append(f"{words}: {type(error).__name__}: {error}")
sys.stderr.write("\\n".join(failed))
sys.exit(len(failed))
"""
READS = (
    "lines",
    "kernels",
    "apis",
    "copies",
    "syncs",
    "ranges",
    "streams",
    "steps",
    "gaps",
    "overlap",
    "memory",
    "counters",
    "energy",
)
IN_ASCII = [
    *([name, BEFORE] for name in (*READS, "check", "info")),
    ["diff", BEFORE, AFTER],
    ["ranks", BEFORE, AFTER],
    ["collectives", BEFORE, AFTER],
    ["critical-path", BEFORE],
    ["roofline", BEFORE],
    ["peaks", "--cached"],
    ["ncu", BEFORE, "--line", "no_such_file.py:1", "--from", "no_such_report.csv"],
    ["report", BEFORE, "-o", "page.html"],
    ["mcp", "--root", "no_such_folder"],
    ["export", BEFORE, "--to", "perfetto", "-o", "out.json"],
    ["merge", BEFORE, AFTER, "-o", "merged.sqlite"],
    ["rules"],
    ["rules", "tiny_kernels"],
    ["doctor"],
    ["demo"],
    ["interconnect", "no.json"],
    ["exercise", "list"],
    ["exercise", "status"],
    ["exercise", "start", "17", "--recorded"],
    ["exercise", "check"],
    ["exercise", "hint"],
    ["exercise", "solution", "17"],
    ["exercise", "next"],
    ["status"],
    ["recover", "no.spool"],
    ["attach", "1"],
    ["detach", "1"],
    ["record", "no_such_script.py"],
    ["bench", "no_such_file.py:f"],
    ["ab", "--", "no_such_script.py", ":::", "no_such_script.py"],
    *([name, "--help"] for name in COMMANDS),
]


@pytest.mark.parametrize(
    "locale",
    [{"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}],
    ids=["LC_ALL=C", "PYTHONIOENCODING=ascii"],
)
def test_every_command_works_where_the_locale_is_ascii(tmp_path: Path, locale: dict[str, str]) -> None:
    assert {words[0] for words in IN_ASCII if words[-1] != "--help"} == set(COMMANDS)
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT), "XDG_STATE_HOME": str(tmp_path), **locale}
    done = subprocess.run(
        [sys.executable, "-c", ASCII, json.dumps(IN_ASCII)],
        capture_output=True, env=environment, cwd=tmp_path, timeout=600,
    )  # fmt: skip
    said = (done.stdout + done.stderr).decode("ascii")
    assert done.returncode == 0 and "Traceback" not in said, done.stderr.decode()
    assert not re.search(r"\\x[0-9a-f]{2}|\\u[0-9a-f]{4}", said), "a letter has no stand-in"
