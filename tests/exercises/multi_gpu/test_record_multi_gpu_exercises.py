# SPDX-License-Identifier: Apache-2.0
"""record_multi_gpu_exercises.py without GPUs: made recordings stand in for what it would record."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from conftest import REPO
from exercises.multi_gpu.rank_traces import MADE

from profiling_lab.exercises import answers, find
from profiling_lab.exercises.exercise import CheckStatus

TOOLS = REPO / "tools" / "multi_gpu"
FASTER = {"times": [[0.03, 0.01]] * 3, "wrong": "", "given": 31.0, "right": 30.0}


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    sys.path.insert(0, str(TOOLS))  # it uses its neighbours
    try:
        yield loaded("record_multi_gpu_exercises")
    finally:
        sys.path.remove(str(TOOLS))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each exercise `starter` and `solution`."""
    folder = tmp_path_factory.mktemp("made")
    for slug, make in MADE.items():
        (folder / slug).mkdir()
        for name, solved in (("starter", False), ("solution", True)):
            (target := folder / slug / name).mkdir()
            make(target, solved)
    return folder


@pytest.fixture
def stand_ins(script: ModuleType, made: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What needs GPUs; what races give can be changed."""
    raced = dict(FASTER)

    def record(folder: Path, program: Path, options: Any = (), arguments: Any = ()) -> str:
        slug = next(s for s in MADE if find(s).entry.package == program.parent.parent.name)
        kind = "solution" if program.parent.name == "solved" else "starter"
        job = {"train_ddp.py": "ddp", "train_fsdp.py": "fsdp2"}.get(program.name, "")
        shutil.copytree(made / slug / kind / job, folder)
        return f"recorded {program.name}\n"

    def run(program: Path, arguments: list[str], folder: Path) -> str:
        for number, path in enumerate(sorted((made / "distributed-profiling/starter/torch").iterdir())):
            if arguments:
                (target := Path(arguments[1])).mkdir(parents=True, exist_ok=True)
                packed = gzip.compress(path.read_bytes())
                (target / f"trace.rank{number}.json.gz").write_bytes(packed)
        return "ran\n"

    def profile(command: list[str], cwd: Path, env: dict[str, str], **_: Any) -> Any:
        assert command[-3:-1] == ["exercise", "profile"] and env["XDG_STATE_HOME"].startswith(str(cwd))
        shutil.copytree(made / "multi-gpu-timeline" / "starter", Path(command[-1]) / "run1")
        return SimpleNamespace(stdout="profiled\n", stderr="")

    monkeypatch.setattr(script.rank_runs, "record", record)
    monkeypatch.setattr(script.rank_runs, "run", run)
    monkeypatch.setattr(script.rank_runs, "on_ranks", lambda work: "bucket_cap_mb=1: 9 ms per step\nnoise\n")
    monkeypatch.setattr(script, "subprocess", SimpleNamespace(run=profile))
    monkeypatch.setattr(script.job_repair, "in_ranks", lambda work, backend: raced)
    return raced


def recorded(script: ModuleType, out: Path, slug: str) -> Any:
    exercise = find(slug)
    one = script.Recorded(exercise, out / exercise.entry.package, out / "raw" / exercise.entry.package)
    script._timed(one, "seconds on GPUs", script.RUNS[slug])
    script._timed(one, "seconds of analysis", script._analysed)
    return one


@pytest.mark.parametrize("slug", MADE)
def test_its_answers_are_right_and_its_row_is_honest(
    slug: str, script: ModuleType, stand_ins: dict[str, Any], tmp_path: Path
) -> None:
    one = recorded(script, tmp_path, slug)
    assert one.row["good"] is True, one.row
    folder = tmp_path / one.exercise.entry.package
    files = {path.relative_to(folder / "recorded").as_posix() for path in (folder / "recorded").rglob("*.gz")}
    if slug == "distributed-profiling":
        assert len(files) == 10
        assert {
            "starter_h200/fsdp2/train_fsdp.rank1.sqlite.gz",
            "starter_h200/torch/trace.rank0.json.gz",
        } < files
    else:
        kinds = ("starter_h200", "solution_h200")
        assert files == {f"{kind}/run.rank{rank}.sqlite.gz" for kind in kinds for rank in range(2)}
    assert sum(path.stat().st_size for path in folder.rglob("*")) < 900_000
    console = (folder / "recorded" / "console.txt").read_text()
    assert "$ profiling-lab ranks recorded/starter_h200" in console and str(tmp_path) not in console
    # As it is when the folders are copied over those of the package.
    given = answers.read(folder / "solutions").replaced({"trace": str(folder / "recorded" / "starter_h200")})
    checks = one.exercise.findings(tmp_path, given)
    assert {check.status for check in checks} == {CheckStatus.PASSED}, checks


def test_a_repair_that_wins_too_little_is_not_good(
    script: ModuleType, stand_ins: dict[str, Any], tmp_path: Path
) -> None:
    stand_ins["times"] = [[0.01, 0.01]] * 3
    one = recorded(script, tmp_path, "multi-gpu-timeline")
    assert one.row["good"] is False and "1.00 times" in str(one.row["ddp_training.py speed"])
    assert one.row["check names first"] == ["exposed_allreduce"] * 2
    assert one.row["check on the solution"] == ["", ""]
    stand_ins |= {"times": FASTER["times"], "wrong": "on rank 1 train returns 3"}
    assert recorded(script, tmp_path / "again", "multi-gpu-timeline").row["good"] is False
    stand_ins["given"] = 60.0
    assert recorded(script, tmp_path, "cold-collectives").row["good"] is False


def test_what_fails_in_one_exercise_leaves_the_others(
    script: ModuleType, stand_ins: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fails(one: Any) -> None:
        raise RuntimeError("rank 1: wait status 9")

    monkeypatch.setitem(script.RUNS, "multi-gpu-timeline", fails)
    only = "multi-gpu-timeline,cold-collectives"
    arguments = ["--out", str(tmp_path / "out"), "--only", only, "--tar", str(tmp_path / "all.tar.gz")]
    monkeypatch.setattr(sys, "argv", ["record", *arguments])
    assert script.main() == 1
    shown = capsys.readouterr().out
    assert "E04 multi-gpu-timeline: NOT GOOD" in shown and "E38 cold-collectives: good" in shown
    rows = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    assert "rank 1: wait status 9" in rows[0]["failed"]
    with tarfile.open(tmp_path / "all.tar.gz") as archive:
        names = archive.getnames()
    assert "e38_cold_collectives/recorded/console.txt" in names
    assert any(name.startswith("raw/e38_cold_collectives/starter_h200") for name in names)
    monkeypatch.setattr(script, "MOST_TAR_BYTES", 1)
    script._pack(tmp_path / "out", tmp_path / "small.tar.gz")
    with tarfile.open(tmp_path / "small.tar.gz") as archive:
        assert not any(name.startswith("raw") for name in archive.getnames())


# Runs on ranks.


def test_each_rank_is_a_fork_with_its_numbers(script: ModuleType) -> None:
    def work(rank: int) -> None:
        print(rank, *(os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")))

    assert sorted(script.rank_runs.on_ranks(work).splitlines()) == ["0 0 0 2 127.0.0.1", "1 1 1 2 127.0.0.1"]


def test_a_rank_that_fails_or_hangs_is_told_with_what_was_printed(script: ModuleType) -> None:
    def fails(rank: int) -> int:
        print("before")
        if rank:
            raise ValueError("mine")
        return 0

    with pytest.raises(RuntimeError, match=r"(?s)rank 1: wait status 256.*before.*ValueError: mine"):
        script.rank_runs.on_ranks(fails)
    with pytest.raises(RuntimeError, match="rank 0: wait status 768"):
        script.rank_runs.on_ranks(lambda rank: 0 if rank else sys.exit(3))

    def hangs(rank: int) -> None:
        time.sleep(60 * rank)

    begin = time.monotonic()
    with pytest.raises(RuntimeError, match=r"not ended after 0\.5 s"):
        script.rank_runs.on_ranks(hangs, limit_s=0.5)
    assert time.monotonic() - begin < 30


def test_a_small_trace_is_the_gpu_the_calls_and_the_steps(script: ModuleType, tmp_path: Path) -> None:
    path = REPO / "tests/data/ddp_h200/kineto.rank0.json.gz"
    text = gzip.decompress(path.read_bytes())
    data = json.loads(text)
    data["traceEvents"] += [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1, "pid": 1, "tid": 1},
        {"ph": "X", "cat": "user_annotation", "name": "mine", "ts": 1, "dur": 1, "pid": 1, "tid": 1},
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": "ProfilerStep#3",
            "ts": 1,
            "dur": 1,
            "pid": 1,
            "tid": 1,
        },
    ]
    small = json.loads(script.rank_runs.small_trace(json.dumps(data).encode()))
    names = {event["name"] for event in small["traceEvents"]}
    assert "ProfilerStep#3" in names and not names & {"aten::mm", "mine"}
    assert small["distributedInfo"]["rank"] == 0
    kernels = [sum(event.get("cat") == "kernel" for event in each["traceEvents"]) for each in (data, small)]
    assert kernels[0] == kernels[1] > 0
