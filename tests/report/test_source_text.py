# SPDX-License-Identifier: Apache-2.0
"""The text of a line next to its number, in tables, findings, comparisons and on the page."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from browser import Browser, find_browser
from builders import TraceBuilder
from report.page_reader import PageReader

from profiling_lab.analysis.lines import lines
from profiling_lab.cli import main
from profiling_lab.report.html import build_page
from profiling_lab.report.lines.lines import lines_report
from profiling_lab.report.table import write
from profiling_lab.trace import Trace
from profiling_lab.trace.window import WindowSelection

MS = 1_000_000
HOSTILE = '</script><script>window.stolen=1</script><img src=x onerror=window.stolen=1> & "quotes" [bold]|`'
LONG = "y = heavy_layer(x, w1, w2, w3, b)" + " + bias" * 20


def training(
    path: Path, texts: dict[int, str], gelu_ns: int = MS, gelu: int = 87, steps: int = 6, waits: bool = True
) -> Path:
    """Steps with a kernel of line 5 and one of line `gelu`, whose texts are known as far as `texts` says."""
    builder = TraceBuilder()
    for number in range(steps):
        builder.now_ns = start_ns = max([builder.now_ns, *builder.gpu_free_ns.values()])
        builder.launch("gemm<float>", 2 * MS, stack="/app/train.py:3 main > /app/model.py:5 Net.forward")
        builder.launch("gelu", gelu_ns, stack=f"/app/train.py:3 main > /app/model.py:{gelu} Net.forward")
        if waits:
            builder.call("cudaDeviceSynchronize").gap(MS)
        builder.range(f"ProfilerStep#{number}", start_ns, max(builder.gpu_free_ns.values()))
    for line, text in texts.items():
        builder.source("/app/model.py" if line > 3 else "/app/train.py", line, text)
    return builder.write(path)


def shown(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    main([str(part) for part in argv])
    out, err = capsys.readouterr()
    assert not err
    return out


def row_of(out: str, part: str) -> str:
    return next(line for line in out.splitlines() if part in line)


def test_lines_end_with_their_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = training(tmp_path / "a.sqlite", {5: LONG})
    out = shown(capsys, "lines", path)
    assert row_of(out, "of GPU time  source").endswith("source")
    assert row_of(out, "model.py:5").endswith("66.7 %  " + LONG), "whole, in a pipe"
    assert row_of(out, "model.py:87").endswith("33.3 %  -"), "unknown"
    tree = shown(capsys, "lines", path, "--tree")
    assert row_of(tree, "model.py:5").endswith(LONG) and row_of(tree, "train.py:3").endswith(" -")
    rows = json.loads(shown(capsys, "lines", path, "--format", "json"))["data"]["rows"]
    assert [row["source"] for row in rows] == [LONG, None]
    table = list(csv.DictReader(io.StringIO(shown(capsys, "lines", path, "--format", "csv"))))
    assert [row["source"] for row in table] == [LONG, ""]
    assert list(table[0])[-1] == "source"
    assert shown(capsys, "lines", path, "--format", "md").count("heavy\\_layer") == 1


def test_groups_of_lines_have_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = training(tmp_path / "a.sqlite", {5: LONG})
    for by in ("function", "file", "kernel"):
        assert "source" not in shown(capsys, "lines", path, "--by", by, "--format", "json")


@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
@pytest.mark.parametrize("command", [("lines",), ("lines", "--tree"), ("check",), ("diff",)])
def test_without_texts_there_is_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], form: str
) -> None:
    path = training(tmp_path / "a.sqlite", {})
    files = [path, training(tmp_path / "b.sqlite", {}, 2 * MS)][: 1 + (command[0] == "diff")]
    assert "source" not in shown(capsys, *command, *files, "--format", form)


def test_texts_of_other_lines_make_no_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "lines", training(tmp_path / "a.sqlite", {3: LONG}))
    assert "source" not in out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("text", [LONG, "深" * 100])
def test_a_terminal_shows_what_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    from rich.cells import cell_len

    def at(width: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("NO_COLOR", "1")
        stream = Terminal()
        with Trace.open(path) as trace:
            write(lines_report(trace, lines(trace)), "table", stream)
        return stream.getvalue().splitlines()

    path = training(tmp_path / "a.sqlite", {5: text})
    (row,) = (line for line in at(120) if "model.py:5" in line)
    assert row.endswith("…") and text[:15] in row
    assert 117 <= cell_len(row) <= 120
    assert len(at(120)) == len(at(500)), "one line each"
    assert not any(text[:5] in line for line in at(40)), "no room"
    assert any(line.endswith(text) for line in at(500))


def test_a_part_of_a_trace_reads_no_texts_of_its_own(tmp_path: Path) -> None:
    """`check` looks at the steady steps and shows lines of the whole: the table is read once."""
    builder = TraceBuilder()
    for _ in range(3):
        builder.launch("k", 1_000, stack="/app/a.py:3 f")
    builder.source("/app/a.py", 3, "y = f(x)")
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        part = trace.windowed(WindowSelection(range="0s:1s"))
        assert part is not trace and part.source_texts is trace.source_texts
        assert part.source_texts == {("/app/a.py", 3): "y = f(x)"}


def test_findings_show_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = training(tmp_path / "a.sqlite", {5: LONG, 87: "torch.gelu(x)"})
    out = shown(capsys, "check", path).splitlines()
    at = [i for i, line in enumerate(out) if line.startswith("  at /app/model.py:")]
    assert at
    for i in at:
        assert out[i + 1] == f"  source: {LONG if 'model.py:5 ' in out[i] else 'torch.gelu(x)'}"
    assert sum("source: " in line for line in out) == len(at)
    for row in json.loads(shown(capsys, "check", path, "--format", "json"))["data"]["rows"]:
        assert row["source"] == {5: LONG, 87: "torch.gelu(x)", None: None}[row["line"]]


def compared(
    capsys: pytest.CaptureFixture[str], *files: Path
) -> tuple[list[str], dict[int, tuple[str, str]]]:
    """What the table says about source, and per line its texts before and after."""
    rows = json.loads(shown(capsys, "diff", *files, "--format", "json"))["data"]["rows"]
    told = [line.strip() for line in shown(capsys, "diff", *files).splitlines() if "source" in line]
    return told, {
        row["line"] or row["line_before"]: (row["source_before"], row["source"])
        for row in rows
        if row["kind"] == "line"
    }


def test_a_comparison_shows_the_line_of_each_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = training(tmp_path / "before.sqlite", {5: "a(x)", 87: "gelu(x)"})
    same = training(tmp_path / "same.sqlite", {5: "a(x)", 87: "gelu(x)"}, 2 * MS)
    told, rows = compared(capsys, before, same)
    assert told == ["source: gelu(x)"], "only where something changed"
    assert rows[5] == ("a(x)", "a(x)") and rows[87] == ("gelu(x)", "gelu(x)")
    edited = training(tmp_path / "edited.sqlite", {5: "a(x)", 87: "slow_gelu(x)"}, 2 * MS)
    told, rows = compared(capsys, before, edited)
    assert told == ["source: slow_gelu(x)", "source before: gelu(x)"]
    moved = training(tmp_path / "moved.sqlite", {5: "a(x)", 90: "gelu(x)"}, 2 * MS, gelu=90)
    told, rows = compared(capsys, before, moved)
    assert told == ["source: gelu(x)"] and rows[90] == ("gelu(x)", "gelu(x)")


def test_a_comparison_with_a_side_without_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The text of one side is not taken for that of the other."""
    old = training(tmp_path / "old.sqlite", {})
    new = training(tmp_path / "new.sqlite", {5: "a(x)", 87: "gelu(x)"}, 2 * MS)
    assert compared(capsys, old, new)[1][87] == ("", "gelu(x)")
    told, rows = compared(capsys, new, old)
    assert told == ["source before: gelu(x)"] and rows[87] == ("gelu(x)", "")


def test_new_and_removed_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Line 5 of the one is not line 5 of the other: each has the text of its own side."""
    sides = []
    for name, kernel, text in (("before", "old_kernel", "old(x)"), ("after", "new_kernel", "new(x)")):
        builder = TraceBuilder()
        for number in range(6):
            builder.now_ns = start_ns = max([builder.now_ns, *builder.gpu_free_ns.values()])
            builder.launch("gemm", 2 * MS, stack="/app/model.py:1 Net.forward")
            builder.launch(kernel, MS, stack=f"/app/model.py:5 {name}")
            builder.range(f"ProfilerStep#{number}", start_ns, max(builder.gpu_free_ns.values()))
        sides.append(builder.source("/app/model.py", 5, text).write(tmp_path / f"{name}.sqlite"))
    rows = json.loads(shown(capsys, "diff", *sides, "--format", "json"))["data"]["rows"]
    found = {
        row["state"]: (row["source_before"], row["source"])
        for row in rows
        if row["function"] != "Net.forward"
    }
    assert found["removed"] == ("old(x)", "") and found["new"] == ("", "new(x)")


def test_recordings_of_one_side_that_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = [training(tmp_path / f"{i}.sqlite", {5: "a(x)", 87: f"gelu({i})"}) for i in range(2)]
    after = training(tmp_path / "after.sqlite", {5: "a(x)", 87: "gelu(x)"}, 2 * MS)
    argv = ("--before", *before, "--after", after)
    rows = json.loads(shown(capsys, "diff", *argv, "--format", "json"))["data"]["rows"]
    assert {row["line"]: row["source_before"] for row in rows if row["line"]} == {5: "a(x)", 87: ""}


@pytest.fixture
def hostile_page(tmp_path: Path) -> Path:
    path = tmp_path / "page.html"
    with Trace.open(training(tmp_path / "a.sqlite", {5: HOSTILE, 87: HOSTILE})) as trace:
        path.write_bytes(build_page(trace).html)
    return path


def test_the_page_holds_the_texts_and_no_markup_of_them(hostile_page: Path) -> None:
    page = PageReader(hostile_page.read_bytes())
    assert [row["source"] for row in page.data["lines"]["data"]] == [HOSTILE, HOSTILE]
    assert HOSTILE in [row["source"] for row in page.data["findings"]["data"]]
    content = hostile_page.read_text()
    assert "window.stolen=1</script>" not in content and "<img src=x" not in content


@pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome is on the PATH")
def test_the_browser_shows_them_as_text(hostile_page: Path) -> None:
    path = find_browser()
    assert path is not None
    try:
        started = Browser(path, 1280, 800)
    except (RuntimeError, OSError) as error:  # a container without what a browser needs
        pytest.skip(f"{path} does not start here: {error}")
    with started as browser:
        browser.open(hostile_page)
        texts = "[...document.querySelectorAll('#{} .source')].map((e) => e.textContent)"
        assert browser.run(texts.format("lines")) == [HOSTILE, HOSTILE]
        assert HOSTILE in browser.run(texts.format("findings"))
        assert browser.run("window.stolen ?? null") is None and browser.console == []
        for width in (360, 820, 1900):
            browser.resize(width, 900)
            browser.open(hostile_page)
            assert browser.run("document.documentElement.scrollWidth") == width, "nothing sticks out"
