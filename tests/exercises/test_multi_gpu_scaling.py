# SPDX-License-Identifier: Apache-2.0
"""E15, on measurements of the simulated cluster (rank_jobs.py), and on those of GPUs where they are there."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from exercises import rank_jobs
from exercises.rank_jobs import made_scaling
from exercises.readme_commands import run_all
from package_root import PACKAGE_ROOT

from profiling_lab.analysis.ranks import LocalPool, ranks
from profiling_lab.cli import main
from profiling_lab.errors import LabError
from profiling_lab.exercises import answers, find, job_repair, workspace
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.e15_multi_gpu_scaling import grade
from profiling_lab.exercises.e15_multi_gpu_scaling.samples import scaling_facts, scaling_times
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck, Need
from profiling_lab.measure import local_ranks

EXERCISE = find("multi-gpu-scaling")
RECORDED = EXERCISE.folder / grade.RECORDED
LINE = rank_jobs.line_of(EXERCISE.slug, "torch.baddbmm")
on_two_and_four = pytest.mark.parametrize("counts", [(1, 2), (1, 2, 4)], ids=["2 GPUs", "4 GPUs"])


pytestmark = pytest.mark.usefixtures("warm_ranks")


COLD_START = local_ranks._ended
"""how ranks are started where no test replaces it"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scaling.json, as the starter gives it on two GPUs, and after.json, as the solution does."""
    folder = tmp_path_factory.mktemp("made")
    made_scaling(folder)
    made_scaling(folder, "after", rank_jobs.divided)
    return folder


def right(folder: Path, name: str = "scaling.json") -> Answers:
    given = answers.read(EXERCISE.folder / workspace.SOLUTIONS)
    return given.replaced({"trace": name, **grade.right_answers(scaling_facts(folder / name))})


@pytest.fixture(scope="module")
def solved(made: Path) -> Answers:
    return right(made)


def statuses(checks: list[GradedCheck]) -> dict[str, str]:
    return {check.name: check.status.value for check in checks}


def failed(checks: list[GradedCheck]) -> list[str]:
    return [check.name for check in checks if check.status is CheckStatus.FAILED]


@on_two_and_four
def test_what_the_cluster_was_made_with_is_the_right_answer(counts: tuple[int, ...], tmp_path: Path) -> None:
    facts = scaling_facts(made_scaling(tmp_path, counts=counts))
    n, divided_ns = counts[-1], rank_jobs.STRONG_NS
    fixed_ns = rank_jobs.NORMS_NS + rank_jobs.OPTIMIZER_NS
    serial = fixed_ns / (divided_ns + fixed_ns)
    assert facts.amdahl.serial_frac == pytest.approx(serial, abs=0.01)
    assert (facts.amdahl.misfit_frac is None) == (n == 2)
    assert facts.strong_percent == pytest.approx(100 / (n * serial + 1 - serial), abs=1.5)
    assert facts.weak_percent == pytest.approx(100, abs=1)
    assert facts.gustafson.serial_frac == pytest.approx(0, abs=0.02), "it does not grow with the rows"
    assert facts.speedup_8 == pytest.approx(1 / (serial + (1 - serial) / 8), rel=0.03)
    assert (facts.late_rank, facts.late_line) == ("0", ("train.py", LINE))
    assert facts.saved_ms == pytest.approx(rank_jobs.NORMS_NS / 1e6, rel=0.02)


def test_right_answers_pass_and_an_empty_file_fails(made: Path, solved: Answers) -> None:
    found = EXERCISE.findings(made, solved)
    assert {check.status for check in found} == {CheckStatus.PASSED}, found
    assert found[0].message == "your own"
    empty = answers.read(EXERCISE.folder).replaced({"trace": "scaling.json"})
    assert [c.name for c in EXERCISE.findings(made, empty) if c.status is CheckStatus.PASSED] == ["recording"]


WRONG = {
    "scaling.strong_percent": (144.7, 76.5, 0.723),  # speedup, of another run, a fraction
    "scaling.weak_percent": (49.8, 72.3),  # divided by n, strong
    "scaling.serial_percent": (27.7, 0.7, 61.8, 0.383),  # what is lost, Gustafson's, 1 - s, a fraction
    "scaling.speedup_8": (8.0, 5.79, 2.61),  # perfect, efficiency times 8, 1 / s
    "finding.rank": ("1", "2", "rank 0"),
    "finding.line": (LINE - 1, 1, rank_jobs.line_of(EXERCISE.slug, "return x + self.down")),
    "finding.saved_ms": (11.7, 98.0, 14009.0),  # waiting of the other, of all steps, in us
    "finding.cause": (
        "a slow link",
        "small buckets",
        "work that every rank repeats",
        "a slow GPU",
        "nothing",
    ),
}


READ_ONCE = functools.cache(scaling_facts)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key in WRONG for value in WRONG[key]])  # type: ignore[attr-defined]
def test_a_plausible_wrong_answer_is_rejected(
    key: str, value: object, made: Path, solved: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grade, "scaling_facts", READ_ONCE)  # nothing changes these files
    given = solved.replaced({key: value})
    assert failed(EXERCISE.findings(made, given)) == [key]


@pytest.mark.parametrize("norms", [rank_jobs.divided, rank_jobs.repeated], ids=["repaired", "on every rank"])
def test_a_measurement_of_another_program_is_refused(norms: Any, solved: Answers, tmp_path: Path) -> None:
    """That the curve looks alike is not enough: the recordings decide."""
    made_scaling(tmp_path, norms=norms)
    found = EXERCISE.findings(tmp_path, solved)
    assert failed(found) == ["recording"] and "does not show the problem" in found[0].message
    assert statuses(found)["finding.line"] == "not checked"


def test_answers_of_another_measurement_are_rejected(solved: Answers, tmp_path: Path) -> None:
    path = made_scaling(tmp_path)
    data = json.loads(path.read_text())
    for run in data["runs"]:
        if (run["scaling"], run["gpus"]) == ("strong", 1):
            run["step_ms"] = [1.1 * ms for ms in run["step_ms"]]
    path.write_text(json.dumps(data))
    wrong = {"scaling.strong_percent", "scaling.serial_percent", "scaling.speedup_8"}
    assert set(failed(EXERCISE.findings(tmp_path, solved))) == wrong


def spoiled(folder: Path, change: Any) -> str:
    """What the grader says of a file with a change."""
    path = made_scaling(folder)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(LabError) as error:
        scaling_facts(path)
    return str(error.value)


def times_of(data: dict[str, Any], scaling: str, gpus: int) -> dict[str, Any]:
    return next(run for run in data["runs"] if (run["scaling"], run["gpus"]) == (scaling, gpus))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(recordings=[]), "has 0 recordings, expected one for each of 2 ranks"),
        (lambda data: data["recordings"].pop(), "has 1 recordings"),
        (lambda data: data.update(recordings=["none.sqlite", "none2.sqlite"]), "none.sqlite"),
        (lambda data: data.update(runs=data["runs"][:1]), "expected times on 1 GPU and on more than one"),
        (lambda data: data.pop("runs"), "is not what scaling_benchmark.py writes"),
        (lambda data: data["runs"][0].pop("step_ms"), "is not what scaling_benchmark.py writes"),
        (lambda data: data["runs"][0].update(step_ms=[float("nan")]), "is not what"),
        (lambda data: data["runs"][0].update(step_ms=[-1.0]), "is not what"),
        (
            lambda data: times_of(data, "strong", 2).update(rows=65536),
            "rows of strong scaling are not the same",
        ),
        (lambda data: times_of(data, "weak", 2).update(rows=32768), "rows of weak scaling are not the same"),
        (lambda data: times_of(data, "strong", 2).update(step_ms=[12.0] * 9), "they do not belong together"),
    ],
)
def test_what_does_not_belong_together_is_one_sentence(change: Any, said: str, tmp_path: Path) -> None:
    text = spoiled(tmp_path, change)
    assert said in text and "\n" not in text


def test_files_that_are_none(tmp_path: Path) -> None:
    for text, said in ((None, "exercise profile` makes it"), ("{", "is not JSON"), ("[]", "is not what")):
        path = tmp_path / "scaling.json"
        if text is not None:
            path.write_text(text)
        with pytest.raises(LabError, match=said):
            scaling_facts(path)


# What `ranks` says, as every exercise is a row of the diagnosis benchmark.


def named(files: list[str]) -> tuple[int, str] | None:
    """The rank and line that `ranks` names first."""
    blame = ranks(files, pool=LocalPool(1)).verdict.blame
    return None if blame is None else (blame.rank, blame.line)


@on_two_and_four
def test_ranks_names_the_planted_line_and_is_silent_on_the_solution(
    counts: tuple[int, ...], tmp_path: Path
) -> None:
    starter = scaling_facts(made_scaling(tmp_path, counts=counts))
    solved = scaling_facts(made_scaling(tmp_path, "after", rank_jobs.divided, counts))
    assert named([str(path) for path in starter.recordings]) == (0, f"/app/train.py:{LINE}")
    assert named([str(path) for path in solved.recordings]) is None


def test_recorded_starter_and_solution() -> None:
    if not RECORDED.is_file():
        pytest.skip("not recorded yet: see tools/multi_gpu")
    before, after = scaling_facts(RECORDED), scaling_times(EXERCISE.folder / grade.SOLUTION)
    assert (before.late_rank, before.late_line) == ("0", ("train.py", LINE))
    assert grade.CAUSES[before.cause] == grade.CHOICES[0]
    assert after.strong_percent >= 100 * grade.GOAL.efficiency_frac, "the goal, as measured"
    assert before.strong[-1].median_ns >= grade.GOAL.faster * after.strong[-1].median_ns
    if after.recordings:
        assert after.late_rank == "", "ranks is silent on the solution"
        assert grade.difference(before, after) == ""
    assert before.strong_percent < 85 < before.weak_percent


# Repairs.


def after(folder: Path, **changes: object) -> GradedCheck:
    return grade._after(folder, Answers({"trace": "scaling.json", "fix.after": "after.json", **changes}))


def test_the_measurement_of_the_solution_shows_the_repair(made: Path) -> None:
    found = after(made)
    assert found.status is CheckStatus.PASSED and "strong efficiency 98.2 % on 2 GPUs" in found.message
    assert after(made, **{"fix.after": ""}).status is CheckStatus.NOT_CHECKED


def changed_after(folder: Path, change: Any) -> GradedCheck:
    made_scaling(folder)
    path = made_scaling(folder, "after", rank_jobs.divided)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return after(folder)


def slow_alone(data: dict[str, Any]) -> None:
    """Twice the time on one GPU, so that two look good."""
    times_of(data, "strong", 1)["step_ms"] = [80.0] * 9


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (slow_alone, "slow on one GPU is no gain"),
        (lambda data: data.update(gpu="NVIDIA A100"), "of different GPUs"),
        (lambda data: times_of(data, "strong", 1).update(step_ms=[30.0] * 9), "the goal is 90 %"),
    ],
)
def test_measurements_that_show_no_repair(change: Any, said: str, tmp_path: Path) -> None:
    found = changed_after(tmp_path, change)
    assert found.status is CheckStatus.FAILED and said in found.message


def test_the_measurement_of_the_unchanged_program_shows_no_repair(made: Path) -> None:
    found = after(made, **{"fix.after": "scaling.json"})
    assert found.status is CheckStatus.FAILED and "the goal is 90 %" in found.message


def checks_of(text: str, folder: Path) -> list[GradedCheck]:
    (folder / grade.PROGRAM).write_text(text)
    return job_repair.checks(EXERCISE.folder / grade.PROGRAM, folder / grade.PROGRAM, grade.GOAL)


def test_solution_computes_the_same_on_both_ranks(tmp_path: Path) -> None:
    text = (EXERCISE.folder / workspace.SOLUTIONS / grade.PROGRAM).read_text()
    found = {check.name: check for check in checks_of(text, tmp_path)}
    assert found["result"].status is CheckStatus.PASSED, found["result"].message
    if Need.TWO_GPUS.missing():
        assert found["speed"].status is CheckStatus.NOT_CHECKED


@pytest.mark.parametrize(
    ("files", "said"), [pytest.param(files, said, id=why) for why, files, said in grade.WRONG_PROGRAMS]
)
def test_programs_that_compute_something_else_are_rejected(
    files: dict[str, str], said: str, tmp_path: Path
) -> None:
    found = checks_of(files[grade.PROGRAM], tmp_path)
    assert (found[0].name, found[0].status) == ("result", CheckStatus.FAILED)
    assert said in found[0].message


def test_untouched_missing_and_broken_programs(tmp_path: Path) -> None:
    text = (EXERCISE.folder / grade.PROGRAM).read_text()
    (found,) = checks_of(text, tmp_path)
    assert "is unchanged" in found.message
    (found,) = checks_of(text + "\nraise RuntimeError('typo')\n", tmp_path)
    assert found.status is CheckStatus.FAILED and "RuntimeError: typo" in found.message
    (found,) = job_repair.checks(EXERCISE.folder / grade.PROGRAM, tmp_path / "none.py", grade.GOAL)
    assert "there is no none.py" in found.message


def test_ranks_that_wait_in_vain_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_ranks, "_ended", COLD_START)
    monkeypatch.setattr(job_repair, "LIMIT_S", 15.0)
    text = (EXERCISE.folder / workspace.SOLUTIONS / grade.PROGRAM).read_text()
    waits = f"{text}\nimport time\nbuild = lambda *_, **__: time.sleep(600)\n"
    (found,) = checks_of(waits, tmp_path)
    assert found.status is CheckStatus.FAILED and "had not ended after 15 s" in found.message


GOAL = grade.GOAL


@pytest.mark.parametrize(
    ("times_ms", "status", "said"),
    [
        ({1: [38, 38], 2: [26, 19.5]}, CheckStatus.PASSED, "on 2 GPUs: 1.33 times, efficiency 97 %"),
        ({1: [38, 38], 2: [26, 21.5]}, CheckStatus.FAILED, "efficiency 88 %; the goal is 90 %"),
        ({1: [38, 45], 2: [26, 23.0]}, CheckStatus.FAILED, "slow on one GPU is no gain"),
        ({1: [38, 38], 2: [22.5, 19.5]}, CheckStatus.FAILED, "the goal is 1.2 times"),
    ],
)  # fmt: skip
def test_the_goal_decides(times_ms: dict[int, list[float]], status: CheckStatus, said: str) -> None:
    # Of five rounds one is disturbed.
    seconds = {
        n: [[ms * GOAL.steps / 1e3 * off for off in (1, 1, 0.99, 1.01, 4)] for ms in both]
        for n, both in times_ms.items()
    }
    found = job_repair.judged(seconds, GOAL)
    assert found.status is status and said in found.message


@pytest.mark.multigpu
def test_the_race_on_gpus(tmp_path: Path) -> None:
    text = (EXERCISE.folder / workspace.SOLUTIONS / grade.PROGRAM).read_text()
    found = checks_of(text, tmp_path)
    assert [check.status for check in found] == [CheckStatus.PASSED] * 2, found


# The program, and what the learner reads.

SUMS = """
from pathlib import Path
from profiling_lab.exercises.program_repair import load


def trained(asked):
    program = load(Path(asked), "program")
    return program.train(program.build("cpu", small=True, seed=3), 4)
"""


@pytest.mark.parametrize("folder", ["", workspace.SOLUTIONS], ids=["starter", "solution"])
def test_two_ranks_train_as_one_does(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_ranks.py").write_text(SUMS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    program = str(EXERCISE.folder / folder / grade.PROGRAM)
    alone, (first, _) = (local_ranks.run("of_ranks:trained", program, n, device="cpu") for n in (1, 2))
    assert len(first) == 4 + 4 * 4, "a loss and four norms a step"
    assert first == pytest.approx(alone[0], rel=1e-4)


def test_the_norms_are_the_sums_of_singular_values() -> None:
    torch = pytest.importorskip("torch")
    program = job_repair.load(EXERCISE.folder / grade.PROGRAM, "program")
    weights = torch.randn(3, 12, 48, dtype=torch.float64)
    expected = torch.linalg.svdvals(weights).sum(dim=1)
    torch.testing.assert_close(program.nuclear_norms(weights), expected, rtol=1e-4, atol=0)


def test_the_benchmark_runs_on_two_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing replaced: torchrun, gloo, the program, the fits."""
    folder = workspace.start(EXERCISE, tmp_path / "copy")
    monkeypatch.chdir(folder)
    benchmark = job_repair.load(folder / grade.BENCHMARK, "scaling_benchmark")
    monkeypatch.setattr("sys.argv", [grade.BENCHMARK, "--cpu"])
    benchmark.main()
    out = capsys.readouterr().out
    assert "amdahl: s = " in out and "gustafson: s = " in out and "two points" in out
    data = json.loads((folder / "scaling.json").read_text())
    assert [(run["scaling"], run["gpus"], run["rows"]) for run in data["runs"]] == [
        ("strong", 1, 24), ("weak", 1, 24), ("strong", 2, 24), ("weak", 2, 48),
    ]  # fmt: skip
    with pytest.raises(LabError, match="has 0 recordings"):
        scaling_facts(folder / "scaling.json")
    monkeypatch.setattr("sys.argv", [grade.BENCHMARK, "--show", "scaling.json"])
    benchmark.main()
    assert capsys.readouterr().out == out[out.index("strong  1 GPUs") :]


def test_what_the_benchmark_does_on_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On four: the launchers and files are real, the GPUs and their times are made."""
    folder = workspace.start(EXERCISE, tmp_path / "copy")
    monkeypatch.chdir(folder)
    source = json.loads(made_scaling(tmp_path / "made", counts=(1, 2, 4)).read_text())
    commands: list[list[str]] = []

    def run(arguments: list[str], environment: object = None) -> str:
        commands.append(arguments)
        if "--times" in arguments:
            gpus = 1 if "--nproc-per-node" not in arguments else int(arguments[3])
            runs = [run for run in source["runs"] if run["gpus"] == gpus]
            Path(arguments[-1]).write_text(json.dumps(runs))
            return ""
        for rank in range(4):
            name = tmp_path / "made" / "scaling_files" / f"run.rank{rank}.sqlite"
            (folder / f"scaling.rank{rank}.sqlite").write_bytes(name.read_bytes())
        return ""

    benchmark = job_repair.load(folder / grade.BENCHMARK, "scaling_benchmark")
    monkeypatch.setattr(benchmark, "run", run)
    monkeypatch.setattr("profiling_lab.exercises.rank_programs.run", run)
    monkeypatch.setattr(benchmark, "gpus", lambda: 5)
    here = benchmark.machine("cpu")
    monkeypatch.setattr(benchmark, "machine", lambda device: here)
    monkeypatch.setattr("sys.argv", [grade.BENCHMARK])
    benchmark.main()
    assert [command[:4] for command in commands[1:]] == [
        ["-m", "torch.distributed.run", "--nproc-per-node", "2"],
        ["-m", "torch.distributed.run", "--nproc-per-node", "4"],
        ["-m", "profiling_lab", "record", "--overwrite"],
    ]
    assert scaling_facts(folder / "scaling.json").most == 4
    monkeypatch.setattr(benchmark, "gpus", lambda: 1)
    with pytest.raises(SystemExit, match="expected two GPUs, found 1: --cpu runs without"):
        benchmark.main()


def test_profile_without_two_gpus_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Need, "missing", lambda self: "found 1" if self is Need.TWO_GPUS else "")
    folder = workspace.start(EXERCISE, tmp_path / "copy")
    assert main(["exercise", "profile", str(folder)]) == 3
    assert "found 1, so there is nothing to record" in capsys.readouterr().err


def test_commands_of_the_readme_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not RECORDED.is_file():
        pytest.skip("not recorded yet: see tools/multi_gpu")
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE_ROOT))
    assert len(run_all(EXERCISE, tmp_path, monkeypatch)) >= 8


def test_three_hints_and_the_goal() -> None:
    assert len(workspace.hints(EXERCISE)) == 3
    text = (EXERCISE.folder / workspace.README).read_text()
    assert f"at least {100 * GOAL.efficiency_frac:g} %" in text and f"{GOAL.faster:g} times as fast" in text
