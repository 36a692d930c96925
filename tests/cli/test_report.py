# SPDX-License-Identifier: Apache-2.0
"""profiling-lab report: the file it writes, what it refuses. The page itself: tests/report/test_html_*."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.cli import main
from profiling_lab.cli.report import default_output


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    builder = TraceBuilder()
    for _ in range(3):
        begin = builder.now_ns
        builder.launch("gemm", 3000, stack="/app/train.py:5 main").gap(20_000)
        builder.range("training_step", begin, builder.now_ns)
    return builder.write(tmp_path / "run.sqlite")


def test_writes_a_page_and_says_so_on_stderr(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = recording.with_name("page.html")
    assert main(["report", str(recording), "-o", str(page), "--title", "two <b>steps</b>"]) == 0
    out, err = capsys.readouterr()
    assert out == "" and "timeline" in err and f"{page}: " in err
    text = page.read_text()
    assert text.startswith("<!doctype html>") and "<title>two &lt;b&gt;steps&lt;/b&gt;</title>" in text
    mask = os.umask(0)
    os.umask(mask)
    assert page.stat().st_mode & 0o777 == 0o666 & ~mask, "a page is as readable as any new file"
    assert sorted(p.name for p in page.parent.iterdir()) == ["page.html", "run.sqlite"], (
        "nothing is left over"
    )


def test_the_page_of_a_trace_has_its_name(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(recording.parent)
    assert main(["report", recording.name]) == 0
    assert "<title>run.sqlite</title>" in recording.with_suffix(".html").read_text()


@pytest.mark.parametrize(
    ("trace", "page"),
    [("a/resnet.pt.trace.json.gz", "resnet.html"), ("run.sqlite", "run.html"), ("v1.2", "v1.2.html")],
)
def test_default_output(trace: str, page: str) -> None:
    assert default_output(trace) == page


def test_does_not_overwrite_unasked(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = recording.with_name("page.html")
    page.write_text("precious")
    assert main(["report", str(recording), "-o", str(page)]) == 2
    assert "pass --overwrite" in capsys.readouterr().err and page.read_text() == "precious"
    assert main(["report", str(recording), "-o", str(page), "--overwrite"]) == 0
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("there/is/none.html", "does not exist"),
        (".", "pass --overwrite"),
        ("pipe", "is a pipe or a device"),
        ("run.sqlite", "is the trace itself"),
    ],
)
def test_refuses_a_bad_place_before_it_works(
    recording: Path, capsys: pytest.CaptureFixture[str], output: str, said: str
) -> None:
    os.mkfifo(recording.with_name("pipe"))
    assert main(["report", str(recording), "-o", str(recording.parent / output)]) == 2
    err = capsys.readouterr().err
    assert said in err and "lines" not in err, "refused before the analyses ran"


def test_standard_output(recording: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["report", str(recording), "-o", "-"]) == 0
    out, err = capfdbinary.readouterr()
    assert out.startswith(b"<!doctype html>") and b"page: " in err
    assert main(["report", str(recording), "-o", "-", "--open"]) == 2


def test_opens_a_browser_on_request(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: bool(shown.append(url)))
    page = recording.with_name("page.html")
    assert main(["report", str(recording), "-o", str(page), "--open"]) == 0
    assert shown == [page.as_uri()]
    assert "no browser was found" in capsys.readouterr().err, "the page is written all the same"


def test_window(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = recording.with_name("page.html")
    assert main(["report", str(recording), "-o", str(page), "--step", "1"]) == 0
    assert "training_step #2" in page.read_text()
    assert main(["report", str(recording), "-o", str(page), "--overwrite", "--step", "7"]) == 2


def test_unreadable_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    junk = tmp_path / "junk.bin"
    junk.write_bytes(b"\x00" * 100)
    assert main(["report", str(junk), "-o", str(tmp_path / "page.html")]) == 4
    assert not (tmp_path / "page.html").exists()
    assert capsys.readouterr().err.startswith("profiling-lab report: ")
