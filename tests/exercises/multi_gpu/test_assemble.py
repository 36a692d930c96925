# SPDX-License-Identifier: Apache-2.0
"""The scripts that assemble what was recorded on GPUs: made recordings stand in for it."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import REPO
from exercises import rank_jobs
from exercises.multi_gpu.rank_traces import MADE
from exercises.rank_jobs import Buckets, made_communication, made_scaling

from profiling_lab.analysis.ranks import LocalPool, ranks
from profiling_lab.exercises import answers, find
from profiling_lab.exercises.e15_multi_gpu_scaling import grade as scaling
from profiling_lab.exercises.e16_communication_overhead import grade as communication
from profiling_lab.exercises.exercise import CheckStatus

TOOLS = REPO / "tools" / "multi_gpu"
HERE = {
    "gpu": rank_jobs.GPU, "driver": "580.1", "torch": "2.11", "cudnn": None, "cuda": "13.0", "git": "abc",
    "date": "2026-11-24T12:00:00Z",
}  # fmt: skip


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", autouse=True)
def neighbours() -> Iterator[None]:
    """The scripts use each other, and those of tools and benchmarks."""
    before = list(sys.path)
    sys.path.insert(0, str(TOOLS))
    yield
    sys.path[:] = before


@pytest.fixture(scope="module")
def exercises() -> ModuleType:
    return loaded("assemble_exercises")


@pytest.fixture
def links() -> ModuleType:
    return loaded("assemble_scaling")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As record_in_turns.py leaves it, of E04, E11 and E38."""
    folder = tmp_path_factory.mktemp("raw")
    for slug, make in MADE.items():
        for end, solved in (("starter", False), ("solution", True)):
            made = tmp_path_factory.mktemp(f"{slug}_{end}")
            make(made, solved)
            target = folder / find(slug).entry.package
            for path in sorted(made.rglob("run.rank*.sqlite")):
                job = path.parent.name if path.parent != made else ""
                piece = {"multi-gpu-timeline": "timeline", "cold-collectives": "cold"}.get(slug, job)
                target.mkdir(exist_ok=True)
                path.rename(target / path.name.replace("run", f"{piece}_{end}", 1))
            if solved or not (made / "torch").is_dir():
                continue
            (target / "ddp_torch").mkdir()
            for rank, path in enumerate(sorted((made / "torch").iterdir())):
                packed = gzip.compress(path.read_bytes())
                (target / "ddp_torch" / f"trace.rank{rank}.json.gz").write_bytes(packed)
    return folder


@pytest.mark.parametrize("slug", MADE)
def test_worked_answers_are_those_of_the_recordings(
    slug: str, exercises: ModuleType, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["assemble", str(raw), "--out", str(tmp_path), "--only", slug])
    assert exercises.main() == 0
    said = capsys.readouterr().out
    assert f"{find(slug).label}: good" in said and "FAILED" not in said
    folder = tmp_path / find(slug).entry.package
    starter = "starter_h200" if slug == "cold-collectives" else "starter_h100"
    files = {path.relative_to(folder / "recorded").as_posix() for path in (folder / "recorded").rglob("*.gz")}
    if slug == "distributed-profiling":
        traces = {f"{starter}/torch/trace.rank{rank}.json.gz" for rank in range(2)}
        assert len(files) == 10 and {f"{starter}/fsdp2/train_fsdp.rank1.sqlite.gz", *traces} < files
    else:
        kinds = (starter, starter.replace("starter", "solution"))
        assert files == {f"{kind}/run.rank{rank}.sqlite.gz" for kind in kinds for rank in range(2)}
    assert sum(path.stat().st_size for path in folder.rglob("*")) < 900_000
    console = (folder / "recorded" / "console.txt").read_text()
    assert f"$ profiling-lab ranks recorded/{starter}" in console and str(tmp_path) not in console
    # As it is when the folders are copied over those of the package.
    given = answers.read(folder / "solutions").replaced({"trace": str(folder / "recorded" / starter)})
    checks = find(slug).findings(tmp_path, given)
    assert {check.status for check in checks} == {CheckStatus.PASSED}, checks


def test_recordings_of_a_solution_that_is_none_are_not_good(
    exercises: ModuleType, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    package = find("multi-gpu-timeline").entry.package
    (tmp_path / "raw" / package).mkdir(parents=True)
    for path in (raw / package).glob("timeline_starter.*"):
        for name in (path.name, path.name.replace("starter", "solution")):
            (tmp_path / "raw" / package / name).write_bytes(path.read_bytes())
    arguments = [str(tmp_path / "raw"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["assemble", *arguments])
    assert exercises.main() == 1
    said = capsys.readouterr().out
    assert "E04 multi-gpu-timeline: NOT GOOD" in said and "names the recordings of the unchanged" in said
    assert "E38" not in said, "what was not recorded is left alone"


def test_the_last_steps_of_a_run(exercises: ModuleType, raw: Path, tmp_path: Path) -> None:
    """Neither what comes before them nor what comes after them."""
    source = raw / find("multi-gpu-timeline").entry.package
    for rank in range(2):
        path = source / f"timeline_starter.rank{rank}.sqlite"
        exercises.assembly.reduced(path, tmp_path / path.name, last_steps=3)
    job = ranks([str(path) for path in sorted(tmp_path.iterdir())], pool=LocalPool(1))
    assert 3 <= job.common_steps <= 4, "the begin of the first one may be in it"
    with sqlite3.connect(tmp_path / "timeline_starter.rank0.sqlite") as file:
        (kernels,) = file.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
    with sqlite3.connect(source / "timeline_starter.rank0.sqlite") as file:
        (of_seven,) = file.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
    assert kernels < of_seven / 7 * 4.2


def test_a_small_trace_is_the_gpu_the_calls_and_the_steps(exercises: ModuleType) -> None:
    data = json.loads(gzip.decompress((REPO / "tests/data/ddp_h200/kineto.rank0.json.gz").read_bytes()))
    at: dict[str, Any] = {"ph": "X", "ts": 1, "dur": 1, "pid": 1, "tid": 1}
    data["traceEvents"] += [
        {**at, "cat": "cpu_op", "name": "aten::mm"},
        {**at, "cat": "user_annotation", "name": "mine"},
        {**at, "cat": "user_annotation", "name": "ProfilerStep#3"},
    ]
    small = json.loads(exercises.assembly.small_trace(json.dumps(data).encode()))
    names = {event["name"] for event in small["traceEvents"]}
    assert "ProfilerStep#3" in names and not names & {"aten::mm", "mine"}
    assert small["distributedInfo"]["rank"] == 0
    kernels = [sum(event.get("cat") == "kernel" for event in each["traceEvents"]) for each in (data, small)]
    assert kernels[0] == kernels[1] > 0


# E15 and E16.


def measured(folder: Path, after: Any = rank_jobs.divided) -> Path:
    """As record_in_turns.py leaves it: times by the number of GPUs, recordings, what NCCL says."""
    for part in (scaling, communication):
        (target := folder / part.ENTRY.package).mkdir(parents=True)
        (target / "machine.json").write_text(json.dumps(HERE))
    target = folder / scaling.ENTRY.package
    for name, norms in (("scaling", rank_jobs.on_first_rank), ("after", after)):
        made_scaling(target, name, norms)
        _apart(target, name)
    target = folder / communication.ENTRY.package
    for name, buckets in (("communication", None), ("second", Buckets(1))):
        made = made_communication(target, name, *([buckets] if buckets else []))
        said = json.loads(made.read_text())["nccl"]
        lines = "\n".join(line.replace("NCCL INFO", "node:1:2 [0] NCCL INFO") for line in said)
        (target / f"{name}.nccl.17.txt").write_text(lines)
        _apart(target, name)
    return folder


def _apart(folder: Path, name: str) -> None:
    """The JSON of the exercise's benchmark is what the script has to make."""
    data = json.loads((folder / f"{name}.json").read_text())
    (folder / f"{name}.json").unlink()
    for rank, file in enumerate(data["recordings"]):
        (folder / file).rename(folder / f"{name}.rank{rank}.sqlite")
    for gpus in (1, 2) if "runs" in data else ():
        runs = [run for run in data["runs"] if run["gpus"] == gpus]
        (folder / f"{name}{gpus}.json").write_text(json.dumps(runs))


def test_both_exercises_about_links(
    links: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(links, "sms", lambda facts: 132)
    monkeypatch.setattr(sys, "argv", ["a", str(measured(tmp_path / "raw")), "--out", str(tmp_path / "out")])
    assert links.main() == 0
    out = capsys.readouterr().out
    assert "exercise: E15 multi-gpu-scaling" in out and "good: True" in out and "failed" not in out
    for part in (scaling, communication):
        target = tmp_path / "out" / "exercises" / part.ENTRY.package
        more: dict[str, Any] = {"trace": part.RECORDED}
        if part is communication:
            more["prediction.second"] = part.SECOND
        given = answers.read(target / "solutions").replaced(more)
        found = part.EXERCISE.findings(target, given)
        assert {check.status for check in found} == {CheckStatus.PASSED}, found
        console = (target / "recorded" / "console.txt").read_text()
        first = f"{Path(part.RECORDED).stem}.rank0.sqlite"
        assert f"$ profiling-lab ranks {first}" in console and str(tmp_path) not in console
        assert "| answer | on the H200 |" in (target / "solutions" / "analysis_notes.md").read_text()
    lines = [json.loads(line) for line in (tmp_path / "out/results/scaling.jsonl").read_text().splitlines()]
    solved = [each for each in lines if each["metric"] == "efficiency" and each["provider"] == "solution"]
    strong = [each["value"] for each in solved if each["case"] == {
        "exercise": "multi-gpu-scaling", "scaling": "strong", "gpus": 2}]  # fmt: skip
    assert len(strong) == 1 and strong[0] > 0.9
    assert {each["benchmark"] for each in lines} == {"scaling", "communication_overhead", "links"}
    assert {each["git"] for each in lines} == {"abc"}


def test_what_is_wrong_or_missing_is_said(
    links: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A solution that does not scale, and a second run that was not reached."""
    raw = measured(tmp_path / "raw", after=rank_jobs.on_first_rank)
    for path in (raw / communication.ENTRY.package).glob("second.rank*"):
        path.unlink()
    monkeypatch.setattr(sys, "argv", ["a", str(raw), "--out", str(tmp_path / "out")])
    assert links.main() == 1
    out = capsys.readouterr().out
    assert "the goal is 90 %" in out and "names 0 recordings, expected one for each rank" in out
    target = tmp_path / "out" / "exercises" / scaling.ENTRY.package
    assert (target / scaling.RECORDED).is_file(), "what there is is kept"


def test_times_without_recordings_are_kept(
    links: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = measured(tmp_path / "raw")
    for path in (raw / scaling.ENTRY.package).glob("after.rank*"):
        path.unlink()
    arguments = [str(raw), "--out", str(tmp_path / "out"), "--only", scaling.ENTRY.slug]
    monkeypatch.setattr(sys, "argv", ["a", *arguments])
    assert links.main() == 1
    assert "difference: not recorded" in capsys.readouterr().out
    data = json.loads((tmp_path / "out/exercises" / scaling.ENTRY.package / scaling.SOLUTION).read_text())
    assert data["recordings"] == [] and len(data["runs"]) == 4


def test_unknown_exercises_are_refused(
    links: ModuleType, exercises: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for script in (links, exercises):
        monkeypatch.setattr(sys, "argv", ["a", "raw", "--out", "x", "--only", "juggling"])
        with pytest.raises(SystemExit):
            script.main()
