# SPDX-License-Identifier: Apache-2.0
"""The benchmark of diagnosis: truth and programs agree, each program runs, and the score counts right."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from builders import TraceBuilder
from conftest import REPO
from package_root import PACKAGE_ROOT

from profiling_lab.rules import RULES
from profiling_lab.rules.gap_words import WORDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = REPO / "benchmarks" / "diagnosis"
PROGRAMS = {path.stem: path for path in sorted((FOLDER / "programs").glob("*.py"))}
TRUTH: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "truth.toml").read_text())
# Causes that no rule names yet: what a better rule would say.
NOT_YET = {"unfused_optimizer"}


@pytest.fixture
def score() -> ModuleType:
    spec = importlib.util.spec_from_file_location("diagnosis_score", FOLDER / "score.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_program_has_its_truth() -> None:
    assert set(TRUTH) == set(PROGRAMS)
    assert all(set(truth) == {"causes", "lines", "half"} for truth in TRUTH.values())
    assert {truth["half"] for truth in TRUTH.values()} == {"open", "held"}


@pytest.mark.parametrize("name", TRUTH)
def test_lines_are_in_the_program_and_causes_have_a_name(name: str) -> None:
    truth = TRUTH[name]
    lines = [line.strip() for line in PROGRAMS[name].read_text().splitlines()]
    assert [line for line in truth["lines"] if line not in lines] == []
    known = {rule.name for rule in RULES} | {*WORDS.values()} | NOT_YET
    assert [cause for cause in truth["causes"] if cause not in known] == []
    assert bool(truth["causes"]) == bool(truth["lines"]) == (not name.startswith("healthy_"))


# Runs every program twice, each in a fork of one process that has imported torch, as run.py does. A fork ends
# without taking the interpreter down, which would take most of the time.
ALL = """
import json, sys
import torch
import gc
import torch._dynamo  # as optimizers do, which takes seconds
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
import run
gc.freeze()  # a collection in a fork would copy every page
for path, *arguments in json.load(sys.stdin):
    print(json.dumps(run.program(path, arguments)), flush=True)
"""


def test_programs_run_without_a_gpu() -> None:
    """In a small configuration, as they are and mended, and both compute a loss."""
    pytest.importorskip("torch")
    runs = [
        [str(PROGRAMS[name]), *arguments]
        for name in PROGRAMS
        if "from transformers" not in PROGRAMS[name].read_text() or find_spec("transformers")
        for arguments in ([], ["--mended"] if TRUTH[name]["causes"] else [])
    ]
    done = subprocess.run(
        [sys.executable, "-c", ALL, str(FOLDER)],
        input=json.dumps(runs),
        capture_output=True,
        text=True,
        timeout=500,
        cwd="/",  # not the source tree, whose package may not be built
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [
        f"{' '.join(run)}: {status}: {text}"
        for run, (status, text) in zip(runs, outcomes, strict=True)
        if status or not re.search(r"(?m)^step_ms [\d.]+ loss -?[\d.]+$", text)
    ]
    assert wrong == []


def recorded(folder: Path, name: str, stack: str, pause_ns: int) -> None:
    """Steps with a pause of the host that samples found in `stack`."""
    builder = TraceBuilder()
    for number in range(12):
        start_ns = builder.now_ns
        builder.launch("k", 1_000_000, stack=f"{PROGRAMS[name]}:1 main").gap(1_000_000)
        for tenth in range(1, 10):
            builder.sample(builder.now_ns + tenth * pause_ns // 10, stack)
        builder.gap(pause_ns).range(f"ProfilerStep#{number}", start_ns, builder.now_ns)
    path = folder / f"{name}.sqlite"
    path.unlink(missing_ok=True)
    builder.write(path)


def test_the_score_counts_causes_lines_gains_and_alarms(score: ModuleType, tmp_path: Path) -> None:
    program = PROGRAMS["tokenize_in_the_loop"]
    text = TRUTH["tokenize_in_the_loop"]["lines"][0]
    lines = [line.strip() for line in program.read_text().splitlines()]
    right, wrong = lines.index(text) + 1, 1
    times = [
        {"case": {"program": "tokenize_in_the_loop"}, "provider": provider, "value": value}
        for provider, value in (("as it is", 12.0), ("mended", 2.0))
    ]
    (tmp_path / "times.jsonl").write_text("".join(json.dumps(row) + "\n" for row in times))
    step_times = score.step_times(tmp_path / "times.jsonl")
    assert step_times == {"tokenize_in_the_loop": (12.0, 2.0)}

    def scored(name: str, line: int, pause_ns: int) -> Any:
        recorded(tmp_path, name, f"{PROGRAMS[name]}:{line} work", pause_ns)
        return score._score(tmp_path / f"{name}.sqlite", TRUTH[name], step_times.get(name))

    row = scored("tokenize_in_the_loop", right, 10_000_000)
    assert (row.cause, row.line, row.gain, row.false_alarm) == (True, True, True, None), row
    assert row.predicted_ms == pytest.approx(10, rel=0.15) and row.measured_ms == 10.0
    row = scored("tokenize_in_the_loop", wrong, 30_000_000)
    assert (row.cause, row.line, row.gain) == (True, False, False), "three times what was measured"
    assert row.saves_frac == pytest.approx(10 / 12) and row.counts
    step_times["tokenize_in_the_loop"] = (12.0, 9.5)
    assert not scored("tokenize_in_the_loop", right, 10_000_000).counts, "a fifth of the step"
    row = scored("healthy_logging", 1, 10_000_000)
    assert (row.cause, row.false_alarm) == (None, True)
    row = scored("healthy_logging", 1, 1_000)
    assert (row.cause, row.false_alarm) == (None, False)


def test_a_folder_without_recordings_is_one_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "score.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
    )
    assert done.returncode == 2 and "holds no recording of the benchmark" in done.stderr
    assert "Traceback" not in done.stderr


# A run that hangs, one that leaves a process which holds its output, and one that is not begun.
RUNS = """
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
import run

def leaves_a_process():
    if os.fork() == 0:
        time.sleep(600)
    print("step_ms 1.5", flush=True)
    return 0

left = run.Child(leaves_a_process)
left.read(run.STEP)
said = run.STEP.search(left._text.decode())[1]
outcomes = [left.end()]
run.MOST_S = 0.5
outcomes.append(run.Child(lambda: time.sleep(600) or 0).end())
runner = run.Runner(run.Path(sys.argv[2]), json.loads(sys.argv[3]), until=0)
paths = [run.HERE / "programs" / f"{name}.py" for name in ("healthy_logging", "repeated_keys")]
print(json.dumps([said, outcomes, runner.run(paths, ["recordings", "times"])]))
"""


def test_a_run_that_hangs_is_ended_and_what_is_left_is_told(tmp_path: Path) -> None:
    machine = {name: "" for name in ("gpu", "driver", "torch", "cudnn", "cuda", "git", "date")}
    done = subprocess.run(
        [sys.executable, "-c", RUNS, str(FOLDER), str(tmp_path), json.dumps(machine)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
    )
    assert done.returncode == 0, done.stderr
    said, (left, hung), code = json.loads(done.stdout)
    assert said == "1.5" and left == [0, "step_ms 1.5\n"]
    assert hung[0] != 0 and "not done in 0.5 s" in hung[1]
    assert code == 1
    not_done = "recordings of healthy_logging, recordings of repeated_keys, times of repeated_keys"
    assert done.stderr == f"not done, the time was over: {not_done}\n"
