# SPDX-License-Identifier: Apache-2.0
"""Every script of benchmarks/ starts and says what it does, and says so where it needs a GPU and has none."""

from __future__ import annotations

import os
import sqlite3
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from conftest import REPO

from profiling_lab.errors import UsageError
from profiling_lab.measure import machine

torch = pytest.importorskip("torch")

FOLDER = REPO / "benchmarks"
FOLDERS = (FOLDER, *(FOLDER / name for name in ("analysis", "layer_norm_gelu", "recorder")))
SCRIPTS = sorted(p.stem for folder in FOLDERS for p in folder.glob("*.py") if "__main__" in p.read_text())
PEERS = {"naive_pandas"}  # what they import is the peer itself


@pytest.fixture(autouse=True)
def scripts_import_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(str(folder))


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


def test_a_profiler_that_is_attached_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_script = import_module("script").run_script
    with pytest.raises(SystemExit) as end:
        run_script(lambda: 0)
    assert end.value.code == 0 and capsys.readouterr().err == ""
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    with pytest.raises(SystemExit) as end:
        run_script(lambda: 3)
    assert end.value.code == 3
    assert "a profiler is attached to this benchmark" in capsys.readouterr().err


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


def test_the_hugging_face_step_is_a_training_step() -> None:
    pytest.importorskip("transformers")
    step = import_module("recorder_workloads").hugging_face_training("cpu")
    for _ in range(2):
        step()
    held = [cell.cell_contents for cell in step.__closure__]
    model = next(thing for thing in held if isinstance(thing, torch.nn.Module))
    before = [p.detach().clone() for p in model.parameters()]
    step()
    changed = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert all(changed) and len(model.transformer.h) == 6


def test_a_workload_whose_library_is_missing_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match="needs transformers"):
        import_module("recorder_workloads").hugging_face_training("cpu")


def test_what_a_recorded_child_says_of_its_steps_is_in_the_results(tmp_path: Path) -> None:
    overhead = import_module("recorder_overhead")
    output = tmp_path / "1.sqlite"
    with sqlite3.connect(output) as file:
        file.execute("CREATE TABLE PYREC_META (name, value)")
        file.execute("INSERT INTO PYREC_META VALUES ('overhead_callback_ns', '250')")
    overhead.counts_file(tmp_path / "turns", "recorded").write_text('{"calls": 2000.0, "kernels": 900.0}')
    found: dict[tuple[str, str], float] = {}

    class Results:
        def add(self, _: str, __: object, name: str, metric: str, value: float, unit: str) -> None:
            found[metric, unit] = value

    run = SimpleNamespace(results=Results(), case={})
    overhead.add_contents(run, "plain", tmp_path, ["python"])
    assert not found
    overhead.add_contents(run, "recorded", tmp_path, ["python", "-m", "profiling_lab", "-o", str(output)])
    assert found[("callbacks", "ns/step")] == 500_000 and found[("kernels", "kernels/step")] == 900


def test_another_build_is_compared_by_its_own_program_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overhead = import_module("recorder_overhead")
    monkeypatch.setenv("PYTHONPATH", "mine")
    arguments = SimpleNamespace(before=tmp_path, pin=False, workload="loop", steps=2, peer=None, copies=2)
    run = SimpleNamespace(args=arguments)
    with pytest.raises(UsageError, match=r"expected a folder with profiling_lab/_recorder\..*\.so, got "):
        overhead.programs(run, tmp_path)
    (tmp_path / "profiling_lab").mkdir()
    (tmp_path / "profiling_lab/_recorder.abi.so").touch()
    commands = overhead.programs(run, tmp_path)
    assert commands[overhead.BEFORE][1:4] == ["-m", "profiling_lab", "record"]
    paths = {name: overhead.environment(run, name)["PYTHONPATH"] for name in commands}
    for name in (overhead.BEFORE, f"{overhead.BEFORE}{overhead.COPY}2"):
        assert paths.pop(name) == f"{tmp_path}{os.pathsep}mine"
    assert set(paths.values()) == {"mine"} and len(set(map(tuple, commands.values()))) == len(commands)
