# SPDX-License-Identifier: Apache-2.0
"""Every script of benchmarks/ starts and says what it does, and says so where it needs a GPU and has none."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import REPO

from profiling_lab.errors import UsageError
from profiling_lab.measure import machine

torch = pytest.importorskip("torch")

FOLDER = REPO / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if "__main__" in path.read_text())
PEERS = {"naive_pandas"}  # what they import is the peer itself


@pytest.fixture(autouse=True)
def scripts_import_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in PEERS])
def test_help(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    module = import_module(name)
    with pytest.raises(SystemExit) as end:
        module.main(["--help"]) if name == "synthetic_trace" else module.main()
    assert end.value.code == 0
    assert "usage:" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_sentence_and_the_code_for_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["heavy_layer.py"])
    with pytest.raises(SystemExit) as end:
        import_module("script").run_script(import_module("heavy_layer").main)
    assert end.value.code == UsageError.exit_code
    assert capsys.readouterr().err.startswith("this measurement needs an NVIDIA GPU; torch ")
    with pytest.raises(UsageError):
        machine("cuda:0")


def test_the_analysis_is_drawn_from_its_results(tmp_path: Path) -> None:
    rows = [
        {
            "run": "a",
            "date": "2026-11-21T00:00:00Z",
            "provider": "profiling-lab",
            "metric": "time",
            "value": millions * 2.0,
            "case": {"events": millions * 1_000_000, "form": form, "question": question},
        }
        for form in ("recorder", "nsys")
        for question in ("lines", "check")
        for millions in (1, 10)
    ]
    import_module("analysis_throughput").plot(rows, tmp_path / "chart.svg")
    texts = [e.text for e in ElementTree.parse(tmp_path / "chart.svg").iter() if e.tag.endswith("}text")]
    assert {"million events", "seconds", "lines", "check", "recorder", "nsys"} <= set(texts)
