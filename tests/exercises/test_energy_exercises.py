# SPDX-License-Identifier: Apache-2.0
"""E12 and E13 on simulated GPUs, whose joules are known: the learner's data, the graders, the recording."""

from __future__ import annotations

import csv
import importlib.util
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from exercises.readme_commands import run_all
from utils.fake_nvml import FakeGpu, install

from profiling_lab.errors import UnreadableInputError
from profiling_lab.exercises import answers, find, workspace
from profiling_lab.exercises.e12_power_measurement import repair as measurement
from profiling_lab.exercises.e12_power_measurement import samples
from profiling_lab.exercises.e13_energy_efficiency import repair as table
from profiling_lab.exercises.e13_energy_efficiency import samples as readings
from profiling_lab.exercises.energy_gpus import SimulatedGPU, TorchGPU, next_change, simulated
from profiling_lab.exercises.exercise import CheckStatus, Exercise, GradedCheck
from profiling_lab.exercises.program_repair import load

POWER, EFFICIENCY = find("power-measurement"), find("energy-efficiency")
REPO = Path(__file__).resolve().parents[2]
BOTH = pytest.mark.parametrize("exercise", (POWER, EFFICIENCY), ids=lambda each: each.slug)


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    sys.path.insert(0, str(REPO / "tools"))
    spec = importlib.util.spec_from_file_location(
        "record_energy_exercises", REPO / "tools" / "energy" / "record_energy_exercises.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(REPO / "tools"))
    return module


@pytest.fixture(scope="module")
def made(tool: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the tool records of the simulated GPU, by folder of the exercises."""
    out = tmp_path_factory.mktemp("recorded")
    assert tool.recorded(simulated(), out)
    return out


def solved(exercise: Exercise, made: Path, folder: Path) -> answers.Answers:
    """A learner's folder with the learner's own data, repaired and answered."""
    workspace.start(exercise, folder)
    workspace.copy_solution(exercise, folder)
    mine = folder / exercise.writes
    mine.write_bytes((made / exercise.entry.package / exercise.recording).read_bytes())
    given = answers.read(made / exercise.entry.package / workspace.SOLUTIONS)
    return given.replaced({"trace": exercise.writes})


def statuses(checks: list[GradedCheck]) -> dict[str, str]:
    return {check.name: check.status.value for check in checks}


@BOTH
def test_the_solution_passes_with_own_data_and_the_starter_fails(
    exercise: Exercise, made: Path, tmp_path: Path
) -> None:
    given = solved(exercise, made, tmp_path / "copy")
    grading = exercise.grade(tmp_path / "copy", given)
    assert {check.status for check in grading.checks} == {CheckStatus.PASSED}
    assert grading.checks[0].message.startswith("your own")
    workspace.start(exercise, tmp_path / "new")
    (tmp_path / "new" / exercise.writes).write_bytes((tmp_path / "copy" / exercise.writes).read_bytes())
    empty = answers.read(tmp_path / "new").replaced({"trace": exercise.writes})
    grading = exercise.grade(tmp_path / "new", empty)
    assert [check.name for check in grading.checks if check.status is CheckStatus.PASSED] == ["recording"]


WRONG = {
    POWER.slug: {
        "period_ms": (50.0, 3.0, 0.1), "rise_ms": (1100.0, 100.0), "load_w": (120.0, 620.0),
        "shown_w": (690.0, 120.0), "burst_j": (20.7, 171.0, 6.2), "why": ("too few samples", "idle power"),
    },
    EFFICIENCY.slug: {
        "best": ("fp32", "tf32"), "tflops_per_w": (0.4966, 0.65, 1.206), "factor": (7.12, 12.6),
        "fused_factor": (0.418, 2.62), "race_j": (1.107, 9.657), "race": ("slow",),
    },
}  # fmt: skip
"""those of the planted errors, the inverse, another column: of the simulated GPU"""


@pytest.mark.parametrize(
    ("exercise", "key", "value"),
    [
        pytest.param(each, key, value, id=f"{each.slug} {key} {value}")
        for each in (POWER, EFFICIENCY)
        for key, values in WRONG[each.slug].items()  # type: ignore[attr-defined]
        for value in values
    ],
)
def test_a_plausible_wrong_answer_is_rejected(
    exercise: Exercise, key: str, value: object, made: Path, tmp_path: Path
) -> None:
    given = solved(exercise, made, tmp_path / "copy")
    found = exercise.findings(tmp_path / "copy", given.replaced({f"finding.{key}": value}))
    assert [check.name for check in found if check.status is CheckStatus.FAILED] == [f"finding.{key}"]


@BOTH
def test_answers_follow_the_learners_data(exercise: Exercise, made: Path, tmp_path: Path) -> None:
    """With data of a GPU that uses twice as much, the same answers are wrong."""
    given = solved(exercise, made, tmp_path / "copy")
    path = tmp_path / "copy" / exercise.writes
    if exercise is POWER:
        with path.open() as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            row["energy_mj"] = str(2 * int(row["energy_mj"]))
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        wanted = {"finding.load_w", "finding.burst_j"}
    else:
        tree = json.loads(path.read_text())
        for each in tree["workloads"]:
            each["end_mj"] += each["end_mj"] - each["begin_mj"]
        path.write_text(json.dumps(tree))
        wanted = {"finding.tflops_per_w", "finding.race_j"}
    found = exercise.findings(tmp_path / "copy", given)
    assert {check.name for check in found if check.status is CheckStatus.FAILED} == wanted


def test_the_simulated_gpu_uses_what_it_says() -> None:
    gpu = SimulatedGPU({"kernel": (0.01, 500.0)}, period_s=0.05, window_s=1.0, idle_w=100.0)
    gpu.sleep(2.0)
    assert gpu.power_w() == pytest.approx(100.0) and gpu.instant_w() == 100.0 and not gpu.is_busy()
    began_s, before = next_change(gpu)
    for _ in range(100):
        gpu.workloads["kernel"]()
    assert gpu.is_busy() and gpu.instant_w() == 500.0
    gpu.synchronize()
    assert not gpu.is_busy() and 480 < gpu.power_w() < 500
    ended_s, after = next_change(gpu)
    assert (after - before) / 1e3 == pytest.approx(500 + 100 * (ended_s - began_s - 1.0), rel=0.002)
    gpu.sleep(0.5)
    assert gpu.power_w() < 320, "the average of the second before"


def test_the_right_answers_are_those_of_the_simulated_gpu(made: Path) -> None:
    """690 W under load, 120 W idle, a window of 1 s: known without the programs."""
    found = samples.sample_facts(made / POWER.entry.package / POWER.recording)
    assert found.period_ms == pytest.approx(100, abs=3) and found.rise_ms == pytest.approx(900, abs=10)
    assert found.load_w == pytest.approx(690, rel=0.01) and found.burst_j == pytest.approx(17.1, rel=0.01)
    assert found.shown_w == pytest.approx(120 + 5 * 17.1, rel=0.01), "five bursts in the second before"
    read = readings.read(made / EFFICIENCY.entry.package / EFFICIENCY.recording)
    for name, (seconds, watts) in simulated().kernels.items():
        one = read.workloads[name]
        assert one.joules == pytest.approx(seconds * watts, abs=one.error_j)
        assert one.above_idle_j == pytest.approx(seconds * (watts - 120), abs=one.error_j)
    assert read.best == "bf16" and read.idle_w == pytest.approx(120, rel=0.01)
    assert read.rates["bf16"] == pytest.approx(2 * 8192**3 / 1e12 / (1.6e-3 * 690), rel=0.04)
    assert read.factor == pytest.approx(20 * 480 / (1.6 * 690), rel=0.04)
    assert read.fused_factor == pytest.approx(0.4 * 450 / (0.15 * 500), rel=0.04)
    assert read.race_j == pytest.approx(1.6e-3 * 690 + 18.4e-3 * 120, rel=0.04)


def edited(exercise: Exercise, name: str, folder: Path, *changes: tuple[str, str]) -> Path:
    text = (exercise.folder / workspace.SOLUTIONS / name).read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    (folder / name).write_text(text)
    return folder / name


def measured(path: Path, seed: int = 3) -> dict[str, str]:
    return statuses(measurement.checks(POWER.folder / "measure.py", path, seed))


def test_the_measurement_holds_on_any_gpu() -> None:
    solution = POWER.folder / workspace.SOLUTIONS / "measure.py"
    for seed in range(40):
        assert set(measured(solution, seed).values()) == {"passed"}, seed


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        pytest.param([("LEAST_S, BATCH = 4.0", "LEAST_S, BATCH = 0.5")], "error_j", id="too short"),
        pytest.param([("LEAST_S, BATCH = 4.0, 10", "LEAST_S, BATCH = 0.01, 1")], "joules", id="a burst"),
        pytest.param([('joules / seconds * period / calls,', "0.0,")], "error_j", id="no error bar"),
        pytest.param([('joules / seconds * period / calls,', "-1.0,")], "error_j", id="a negative error bar"),
        pytest.param([("/ 1e3, ended", "/ 1e3 / 2, ended")], "joules", id="half of it"),
        pytest.param([("/ 1e3, ended", "/ 1e3 - 100 * (ended - began), ended")], "joules", id="without idle"),
        pytest.param([("        gpu.synchronize()\n        calls += BATCH", "        calls += BATCH")],
                     "joules", id="not waited for"),
        pytest.param([("calls += BATCH", "calls += 3 * BATCH")], "result", id="calls that were not made"),
        pytest.param([('"calls": calls,', "")], "result", id="no calls"),
        pytest.param([('"joules": joules / calls', '"joules": float("nan")')], "result", id="not a number"),
        pytest.param([("def joules_per_call(", "def other(")], "result", id="no function"),
        pytest.param([("gpu.synchronize()\n    earlier", "gpu.kernels\n    earlier")], "result", id="peeks"),
    ],
)  # fmt: skip
def test_a_wrong_measurement_is_rejected(changes: list[tuple[str, str]], wrong: str, tmp_path: Path) -> None:
    found = measured(edited(POWER, "measure.py", tmp_path, *changes))
    assert [name for name, status in found.items() if status == "failed"] == [wrong], found


def test_the_planted_measurement_is_rejected(tmp_path: Path) -> None:
    text = (POWER.folder / "measure.py").read_text()
    (tmp_path / "measure.py").write_text(text + "\n")
    assert measured(tmp_path / "measure.py")["joules"] == "failed"
    (tmp_path / "measure.py").write_text(text.replace("BURST_S = 0.030", "BURST_S = 0.3"))
    assert measured(tmp_path / "measure.py")["joules"] == "failed", "more samples show the past too"
    assert measured(POWER.folder / "measure.py") == {"result": "failed"}
    assert measured(tmp_path / "none.py") == {"result": "failed"}


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        pytest.param([("2 * each", "each")], {"tflops_per_w"}, id="m n k"),
        pytest.param([("flops / joules", "flops / above_idle_j")], {"tflops_per_w"}, id="idle not paid"),
        pytest.param(
            [('(each["end_mj"] - each["begin_mj"]) / 1e3 / each["calls"]', 'each["power_w"] * seconds')],
            {"joules"},
            id="power of the time before",
        ),
        pytest.param([('1e3 * seconds', "seconds")], {"ms"}, id="seconds"),
        pytest.param([('* readings["period_s"]', "")], {"error_j"}, id="no period"),
        pytest.param([("joules - idle_w * seconds", "joules - idle_w")], {"above_idle_j"}, id="watts"),
        pytest.param([("return rows", "return rows[1:]")], {"result"}, id="a row is missing"),
        pytest.param([("return rows", "return None")], {"result"}, id="nothing"),
        pytest.param([("None if flops is None else", "0.0 if flops is None else")], {"tflops_per_w"}, id="0"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_rejected(changes: list[tuple[str, str]], wrong: set[str], tmp_path: Path) -> None:
    path = edited(EFFICIENCY, "energy_benchmark.py", tmp_path, *changes)
    found = statuses(table.checks(EFFICIENCY.folder / "energy_benchmark.py", path, 3))
    assert {name for name, status in found.items() if status == "failed"} == wrong, found


def test_the_planted_table_is_rejected_column_by_column(tmp_path: Path) -> None:
    starter = EFFICIENCY.folder / "energy_benchmark.py"
    (tmp_path / "mine.py").write_text(starter.read_text() + "\n")
    found = statuses(table.checks(starter, tmp_path / "mine.py", 3))
    assert found["joules"] == "failed" and found["tflops_per_w"] == "not checked"
    assert statuses(table.checks(starter, starter, 3)) == {"result": "failed"}


def test_made_readings_show_another_power_than_was_used() -> None:
    found = readings.evaluated(table.made(random.Random(1)))
    assert all(each.shown_j < 0.95 * each.joules for each in found.workloads.values())


HEAD = ",".join(samples.COLUMNS)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has 0 samples, expected at least 200"),
        ("a,b\n1,2\n", "has no numbers in the columns time_s, phase"),
        (HEAD + "\n" + "1,idle,0,5,120\n" * 300, "goes back at 1 s"),
        (HEAD + "\n" + "".join(f"{n},idle,0,{900 - n},120\n" for n in range(300)), "energy goes back"),
        (HEAD + "\n" + "".join(f"{n},idle,0,{n},120\n" for n in range(300)), "0 loads and 0 phases"),
        (HEAD + "\n" + "x,idle,0,5,120\n" * 300, "has no numbers"),
    ],
)
def test_samples_that_cannot_be_are_refused(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "samples.csv").write_text(text)
    with pytest.raises(UnreadableInputError, match=why):
        samples.sample_facts(tmp_path / "samples.csv")
    found = POWER.findings(tmp_path, answers.Answers({"trace": "samples.csv"}))
    assert found[0].status is CheckStatus.FAILED
    assert {check.status for check in found[1:-1]} == {CheckStatus.NOT_CHECKED}


BREAKS: dict[str, Callable[[dict[str, Any]], object]] = {
    "KeyError: 'idle'": lambda tree: tree.pop("idle"),
    "there is no workload bf16": lambda tree: tree["workloads"].pop(2),
    "a counter that does not go up": lambda tree: tree["workloads"][0].update(end_mj=1),
    "a reading that is not above 0": lambda tree: tree["workloads"][1].update(calls=0),
    "less than 10 periods": lambda tree: tree.update(period_s=1.0),
}


@pytest.mark.parametrize("why", BREAKS)
def test_readings_that_cannot_be_are_refused(why: str, made: Path, tmp_path: Path) -> None:
    given = solved(EFFICIENCY, made, tmp_path / "copy")
    path = tmp_path / "copy" / EFFICIENCY.writes
    tree = json.loads(path.read_text())
    BREAKS[why](tree)
    path.write_text(json.dumps(tree))
    found = EFFICIENCY.findings(tmp_path / "copy", given)
    assert why in found[0].message and found[1].status is CheckStatus.NOT_CHECKED
    path.write_text("{")
    assert "is not JSON" in EFFICIENCY.findings(tmp_path / "copy", given)[0].message


def test_what_was_not_run_is_not_checked(made: Path, tmp_path: Path) -> None:
    given = solved(EFFICIENCY, made, tmp_path / "copy")
    path = tmp_path / "copy" / EFFICIENCY.writes
    tree = json.loads(path.read_text())
    tree["workloads"] = tree["workloads"][:4]
    path.write_text(json.dumps(tree))
    found = statuses(EFFICIENCY.findings(tmp_path / "copy", given))
    assert found.pop("finding.fused_factor") == "not checked" and set(found.values()) == {"passed"}


def test_a_workload_that_fails_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise RuntimeError("no kernel")

    gpu = simulated()
    gpu.workloads["layer_norm_gelu fused"] = fail
    found = load(EFFICIENCY.folder / "readings.py", "readings_program").record(gpu)
    assert [each["name"] for each in found["workloads"]][-1] == "layer_norm_gelu eager"
    assert "layer_norm_gelu fused is left out: no kernel" in capsys.readouterr().out


def test_next_change_gives_up() -> None:
    with pytest.raises(RuntimeError, match=r"did not change within 0\.2 s"):
        next_change(SimulatedGPU({}, period_s=10.0), most_s=0.2)


@BOTH
def test_programs_run_without_a_gpu(exercise: Exercise, tmp_path: Path) -> None:
    folder = workspace.start(exercise, tmp_path / "copy")
    shown = ["measure.py", "--simulated"] if exercise is POWER else ["energy_benchmark.py", "readings.json"]
    commands = [[exercise.program[0], "--simulated"], shown]
    for command in commands:
        done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0 and "simulated GPU" in done.stdout, done.stderr
    found = exercise.findings(folder, answers.read(folder).replaced({"trace": exercise.writes}))
    assert found[0].status is CheckStatus.PASSED


@BOTH
def test_commands_of_the_readme_run(
    exercise: Exercise, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = workspace.start

    def started(which: Exercise, target: Path) -> Path:
        start(which, target)
        recording = made / which.entry.package / which.recording
        (target / which.writes).write_bytes(recording.read_bytes())
        return target

    monkeypatch.setattr(workspace, "start", started)
    assert len(run_all(exercise, tmp_path, monkeypatch)) >= 4


class Running(FakeGpu):
    """Uses 250 W; the counter changes every 20 ms."""

    @property
    def energy_mj(self) -> int:
        return int(time.monotonic() / 0.02) * 5000

    @energy_mj.setter
    def energy_mj(self, _: int) -> None:
        """Its beginning."""


def test_this_machines_gpu_by_nvml_and_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Running("GPU-aaaa", "0000:01:00.0"))
    gpu = TorchGPU("cpu", size=16, rows=4, columns=8)
    assert gpu.name == "Fake GPU" and gpu.power_w() == 300.0 and gpu.instant_w() is None
    began_s, before = next_change(gpu)
    ended_s, after = next_change(gpu)
    assert ended_s > began_s and (after - before) % 5000 == 0 and after > before
    gpu.load(1e-4)
    gpu.synchronize()
    assert not gpu.is_busy()
    program = load(POWER.folder / "step_load.py", "step_load_program")
    rows: list[tuple[object, ...]] = []
    program.watch(gpu, "idle", 0.01, rows)
    assert rows and rows[0][1:3] == ("idle", 0) and rows[0][4:] == ("300.000", "")
    assert set(gpu.shapes) == set(readings.MATMULS)
    assert list(gpu.workloads) == [*readings.MATMULS, readings.EAGER, readings.FUSED]
    eager, fused = (gpu.workloads[name]() for name in (readings.EAGER, readings.FUSED))
    assert (eager - fused).abs().max() < 0.05


@pytest.mark.gpu
def test_a_real_gpu(tmp_path: Path) -> None:
    gpu = TorchGPU()
    gpu.load(0.2)
    assert gpu.is_busy()
    gpu.synchronize()
    program = load(POWER.folder / workspace.SOLUTIONS / "measure.py", "measure_of_a_real_gpu")
    found = program.joules_per_call(gpu, gpu.workloads["bf16"])
    assert 0 < found["error_j"] < 0.1 * found["joules"] and found["calls"] > 10
