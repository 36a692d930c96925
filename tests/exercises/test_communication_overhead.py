# SPDX-License-Identifier: Apache-2.0
"""E16, on runs of the simulated cluster (rank_jobs.py), and on those of GPUs where they are there."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from exercises import rank_jobs
from exercises.rank_jobs import LAYERS, Buckets, made_communication
from exercises.readme_commands import run_all
from package_root import PACKAGE_ROOT

from profiling_lab.analysis.collectives import collectives
from profiling_lab.analysis.collectives.links import load, save
from profiling_lab.analysis.ranks import LocalPool
from profiling_lab.cli import main
from profiling_lab.errors import LabError
from profiling_lab.exercises import answers, find, job_repair, workspace
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.e16_communication_overhead import grade
from profiling_lab.exercises.e16_communication_overhead.samples import communication_facts, predicted_ms
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck, Need
from profiling_lab.rules import RULES
from profiling_lab.rules.run import run
from profiling_lab.trace import Trace

EXERCISE = find("communication-overhead")
RECORDED = EXERCISE.folder / grade.RECORDED
SMS = 132  # of an H100
BUCKET_BYTES = grade.BUCKET_MIB << 20

pytestmark = pytest.mark.usefixtures("warm_ranks")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """communication.json, as the starter gives it on two GPUs, and second.json with buckets of a layer."""
    folder = tmp_path_factory.mktemp("made")
    made_communication(folder)
    made_communication(folder, "second", Buckets(1))
    return folder


def right(folder: Path, name: str = "communication.json") -> Answers:
    """The right answers, with the prediction of the worked answer."""
    facts = communication_facts(folder / name)
    given = answers.read(EXERCISE.folder / workspace.SOLUTIONS)
    predicted = {
        "prediction.step_ms": predicted_ms(facts, BUCKET_BYTES, SMS),
        "prediction.second": "second.json",
    }
    return given.replaced({"trace": name, **grade.right_answers(facts), **predicted})


@pytest.fixture(scope="module")
def solved(made: Path) -> Answers:
    return right(made)


def failed(checks: list[GradedCheck]) -> list[str]:
    return [check.name for check in checks if check.status is CheckStatus.FAILED]


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_the_cluster_was_made_with_is_the_right_answer(ranks: int, tmp_path: Path) -> None:
    facts = communication_facts(made_communication(tmp_path, ranks=ranks))
    whole = LAYERS * rank_jobs.LAYER_BYTES
    assert facts.fit.latency_ns == pytest.approx(rank_jobs.LATENCY_NS, rel=1e-3)
    assert facts.fit.bus_bytes_per_s == pytest.approx(rank_jobs.BUS_BYTES_PER_S, rel=1e-3)
    assert facts.messages == (whole,) and facts.reduced_mib == 768
    assert facts.exposed_ms == pytest.approx(rank_jobs.transfer_ns(whole, ranks) / 1e6, rel=0.03)
    assert facts.reached_percent == pytest.approx(100, abs=1.5)
    assert facts.choice is not None
    assert (facts.choice.protocol, facts.choice.channels) == ("SIMPLE", rank_jobs.CHANNELS)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_worked_answers_model_predicts_other_buckets(layers: int, made: Path, tmp_path: Path) -> None:
    """Within the tolerance of the grade; what is as before, or all hidden and free, is not."""
    first = communication_facts(made / "communication.json")
    second = communication_facts(made_communication(tmp_path, "other", Buckets(layers)))
    size = layers * rank_jobs.LAYER_BYTES
    assert predicted_ms(first, size, SMS) == pytest.approx(second.step_ms, rel=0.02)
    assert first.step_ms > (1 + grade.PREDICTION_FRAC) * second.step_ms


def test_right_answers_pass_and_an_empty_file_fails(made: Path, solved: Answers) -> None:
    found = EXERCISE.findings(made, solved)
    assert {check.status for check in found} == {CheckStatus.PASSED}, found
    assert found[0].message == "your own"
    empty = answers.read(EXERCISE.folder).replaced({"trace": "communication.json"})
    assert [c.name for c in EXERCISE.findings(made, empty) if c.status is CheckStatus.PASSED] == ["recording"]


WRONG = {
    "links.latency_us": (0.02, 40.0, 20_000.0),  # ms, twice, ns
    "links.bandwidth_gb_s": (175.0, 900.0, 0.35),  # half, a data sheet's, TB/s
    "links.transfer_ms": (4.6, 0.21, 2321.0),  # twice the bytes, a layer, us
    "step.reduced_mib": (64.0, 1536.0, 805.3),  # a layer, both ranks, in MB
    "step.exposed_ms": (16.3, 0.23, 2330.0),  # of all steps, of a layer, us
    "step.reached_percent": (1.0, 50.0, 33.4),
    "step.cause": (*grade.CAUSES[1:], "too much"),
    "nccl.protocol": ("LL", "LL128", "RING"),
    "nccl.channels": (132, 32, 1),
    "prediction": (11.1, 13.4, 8.0, 2.3),  # as before, communication added, forward and backward, transfer
}


READ_ONCE = functools.cache(communication_facts)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key in WRONG for value in WRONG[key]])  # type: ignore[attr-defined]
def test_a_plausible_wrong_answer_is_rejected(
    key: str, value: object, made: Path, solved: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grade, "communication_facts", READ_ONCE)  # nothing changes these files
    changed = {"prediction.step_ms" if key == "prediction" else key: value}
    assert failed(EXERCISE.findings(made, solved.replaced(changed))) == [key]


def prediction(folder: Path, given: Answers) -> GradedCheck:
    return next(check for check in EXERCISE.findings(folder, given) if check.name == "prediction")


def test_a_prediction_as_before_gets_its_own_hint(made: Path, solved: Answers) -> None:
    found = prediction(made, solved.replaced({"prediction.step_ms": 11.1}))
    assert "what would no longer be exposed" in found.message
    assert "9.3" not in found.message, "the hint does not tell the second run"


def test_without_a_second_run_of_ones_own_there_is_nothing_to_compare(made: Path, solved: Answers) -> None:
    found = prediction(made, solved.replaced({"prediction.second": ""}))
    assert found.status is CheckStatus.NOT_CHECKED and "--bucket-mb 64 -o second.json" in found.message


def test_a_second_run_of_something_else_is_refused(made: Path, solved: Answers, tmp_path: Path) -> None:
    made_communication(tmp_path)
    for name, buckets, said in (
        ("second", Buckets(LAYERS), "has messages of 768 MiB, expected buckets of 64 MB"),
        ("second", Buckets(3), "has messages of 192 MiB"),
    ):
        made_communication(tmp_path, name, buckets)
        found = prediction(tmp_path, right(tmp_path))
        assert found.status is CheckStatus.FAILED and said in found.message
    made_communication(tmp_path, "second", Buckets(1), ranks=4)
    made_communication(tmp_path)  # the links of two ranks again
    assert "different numbers of them" in prediction(tmp_path, right(tmp_path)).message
    missing = solved.replaced({"prediction.second": "none.json"})
    assert "cannot read none.json" in prediction(made, missing).message


@pytest.mark.parametrize("buckets", [Buckets(1), Buckets(3)])
def test_a_run_of_another_program_is_refused(buckets: Buckets, solved: Answers, tmp_path: Path) -> None:
    made_communication(tmp_path, buckets=buckets)
    found = EXERCISE.findings(tmp_path, solved)
    assert failed(found) == ["recording"] and "does not show the problem" in found[0].message


def test_answers_of_other_links_are_rejected(solved: Answers, tmp_path: Path) -> None:
    made_communication(tmp_path)
    made_communication(tmp_path, "second", Buckets(1))
    links = load(tmp_path / "links.json")
    save(
        replace(links, times=tuple(replace(t, time_ns=2 * t.time_ns) for t in links.times)),
        tmp_path / "links.json",
    )
    wrong = {"links.latency_us", "links.bandwidth_gb_s", "links.transfer_ms", "step.reached_percent"}
    assert set(failed(EXERCISE.findings(tmp_path, solved))) == wrong


def test_what_an_old_nccl_does_not_say_is_not_asked(solved: Answers, tmp_path: Path) -> None:
    path = made_communication(tmp_path)
    made_communication(tmp_path, "second", Buckets(1))
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "nccl": data["nccl"][:1]}))
    found = {check.name: check for check in EXERCISE.findings(tmp_path, solved)}
    assert found["nccl.protocol"].status is found["nccl.channels"].status is CheckStatus.NOT_CHECKED
    assert found["prediction"].status is CheckStatus.PASSED


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda data: data.update(recordings=["one.sqlite"]),
            "names 1 recordings, expected one for each rank",
        ),
        (lambda data: data.pop("links"), "is not what communication_benchmark.py writes"),
        (lambda data: data.update(nccl=None), "is not what communication_benchmark.py writes"),
        (lambda data: data.update(links="none.json"), "cannot read"),
        (lambda data: data.update(recordings=["a.sqlite", "b.sqlite"]), "a.sqlite"),
    ],
)
def test_what_does_not_belong_together_is_one_sentence(change: Any, said: str, tmp_path: Path) -> None:
    path = made_communication(tmp_path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(LabError, match=said) as error:
        communication_facts(path)
    assert "\n" not in str(error.value)


# What `check` says, as every exercise is a row of the diagnosis benchmark.


def first_finding(path: Path) -> str:
    """The rule that `check` names first; "" if it finds nothing."""
    with Trace.open(path) as trace:
        found = run(trace, RULES).findings
    return found[0].rule if found else ""


def communication_findings(path: Path) -> set[str]:
    with Trace.open(path) as trace:
        told = [each for first in run(trace, RULES).findings for each in (first, *first.effects)]
    return {finding.rule for finding in told} & set(EXERCISE.rules)


def test_check_names_the_exposed_reduction_first_and_is_silent_on_the_solution(made: Path) -> None:
    for path in communication_facts(made / "communication.json").recordings:
        assert first_finding(path) in EXERCISE.rules
    for path in communication_facts(made / "second.json").recordings:
        assert not communication_findings(path)


def test_recorded_starter_and_solution() -> None:
    if not RECORDED.is_file():
        pytest.skip("not recorded yet: see tools/multi_gpu")
    before, after = grade.opened(RECORDED), communication_facts(EXERCISE.folder / grade.SECOND)
    assert all(first_finding(path) in EXERCISE.rules for path in before.recordings)
    assert not any(communication_findings(path) for path in after.recordings)
    assert predicted_ms(before, BUCKET_BYTES, SMS) == pytest.approx(after.step_ms, rel=grade.PREDICTION_FRAC)
    assert before.step_ms > (1 + grade.SAME_FRAC) * after.step_ms, "as before is no prediction"
    assert grade._unlike(before, after) == ""
    assert before.nccl.version and before.choice is not None


def test_groups_of_a_window_have_the_ranks_that_take_part() -> None:
    """The recordings begin after NCCL has made the group, so no file says its size."""
    if not RECORDED.is_file():
        pytest.skip("not recorded yet: see tools/multi_gpu")
    files = [str(path) for path in grade.opened(RECORDED).recordings]
    (all_ranks,) = collectives(files, "group", pool=LocalPool(1)).rows
    assert all_ranks.group_size == 4 and all_ranks.count == 28
    # An all-reduce of four ranks has each byte on the bus 1.5 times.
    rates = all_ranks.rates
    assert rates.bus_bytes_per_s is not None and rates.algorithm_bytes_per_s is not None
    assert rates.bus_bytes_per_s == pytest.approx(1.5 * rates.algorithm_bytes_per_s)
    assert all_ranks.arrivals.bus_bytes_per_s is not None
    assert 2e11 < all_ranks.arrivals.bus_bytes_per_s < 4.5e11
    (alone,) = collectives(files[:1], "group", pool=LocalPool(1)).rows
    assert alone.group_size is None and alone.rates.bus_bytes_per_s is None


# Repairs.


def checks_of(text: str, folder: Path) -> list[GradedCheck]:
    (folder / grade.PROGRAM).write_text(text)
    return job_repair.checks(EXERCISE.folder / grade.PROGRAM, folder / grade.PROGRAM, grade.GOAL)


def test_solution_computes_the_same_on_both_ranks(tmp_path: Path) -> None:
    text = (EXERCISE.folder / workspace.SOLUTIONS / grade.PROGRAM).read_text()
    found = {check.name: check for check in checks_of(text, tmp_path)}
    assert found["result"].status is CheckStatus.PASSED, found["result"].message


@pytest.mark.parametrize(
    ("files", "said"), [pytest.param(files, said, id=why) for why, files, said in grade.WRONG_PROGRAMS]
)
def test_programs_that_compute_something_else_are_rejected(
    files: dict[str, str], said: str, tmp_path: Path
) -> None:
    found = checks_of(files[grade.PROGRAM], tmp_path)
    assert (found[0].name, found[0].status) == ("result", CheckStatus.FAILED)
    assert said in found[0].message


@pytest.mark.multigpu
def test_the_race_on_gpus(tmp_path: Path) -> None:
    text = (EXERCISE.folder / workspace.SOLUTIONS / grade.PROGRAM).read_text()
    assert [check.status for check in checks_of(text, tmp_path)] == [CheckStatus.PASSED] * 2


def test_the_solution_changes_the_bucket_alone() -> None:
    starter, solution = (
        (EXERCISE.folder / folder / grade.PROGRAM).read_text().splitlines() for folder in ("", "solutions")
    )
    changed = [new for old, new in zip(starter, solution, strict=True) if old != new]
    assert len(changed) == 1 and changed[0].startswith(f"BUCKET_MB = {grade.BUCKET_MIB} ")


# The programs, and what the learner reads.


def test_the_benchmark_on_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two GPUs and their recordings are made; commands, files and what is kept of NCCL's text are real."""
    folder = workspace.start(EXERCISE, tmp_path / "copy")
    monkeypatch.chdir(folder)
    made_communication(tmp_path / "made")
    commands: list[list[str]] = []

    def run_(arguments: list[str], environment: dict[str, str] | None = None) -> str:
        commands.append(arguments)
        if "interconnect" in arguments:
            (folder / "links.json").write_bytes((tmp_path / "made" / "links.json").read_bytes())
            return ""
        assert environment is not None and environment["NCCL_DEBUG_SUBSYS"] == "INIT,TUNING"
        said = json.loads((tmp_path / "made" / "communication.json").read_text())["nccl"]
        file = Path(environment["NCCL_DEBUG_FILE"].replace("%p", "17"))
        file.write_text("\n".join(line.replace("NCCL INFO", "node:1:2 [0] NCCL INFO") for line in said))
        name = Path(arguments[arguments.index("-o") + 1]).stem
        for rank in range(2):
            source = tmp_path / "made" / "communication_files" / f"run.rank{rank}.sqlite"
            (folder / f"{name}.rank{rank}.sqlite").write_bytes(source.read_bytes())
        return ""

    benchmark = job_repair.load(folder / grade.BENCHMARK, "communication_benchmark")
    monkeypatch.setattr(benchmark, "run", run_)
    monkeypatch.setattr("profiling_lab.exercises.rank_programs.run", run_)
    monkeypatch.setattr(benchmark, "gpus", lambda: 2)
    here = benchmark.machine("cpu")
    monkeypatch.setattr(benchmark, "machine", lambda device: here)
    monkeypatch.setattr("sys.argv", [grade.BENCHMARK])
    benchmark.main()
    out = capsys.readouterr().out
    assert "AllReduce of 805,306,368 bytes: RING, SIMPLE, 24 channels" in out
    assert "profiling-lab collectives communication.rank0.sqlite communication.rank1.sqlite" in out
    facts = communication_facts(folder / "communication.json")
    assert facts.choice is not None and facts.choice.channels == 24 and facts.reduced_mib == 768
    assert len(commands) == 2
    monkeypatch.setattr("sys.argv", [grade.BENCHMARK, "--bucket-mb", "64", "-o", "second.json"])
    benchmark.main()
    assert commands[2][-2:] == ["--bucket-mb", "64"] and len(commands) == 3, "the links are known"
    assert (folder / "second.rank1.sqlite").is_file()
    monkeypatch.setattr("sys.argv", [grade.BENCHMARK, "--show", "communication.json"])
    capsys.readouterr()
    benchmark.main()
    assert capsys.readouterr().out == out
    monkeypatch.setattr(benchmark, "gpus", lambda: 1)
    monkeypatch.setattr("sys.argv", [grade.BENCHMARK])
    with pytest.raises(SystemExit, match="expected two GPUs, found 1"):
        benchmark.main()


def test_the_benchmark_on_two_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing replaced: the links of gloo, and torchrun with the program."""
    monkeypatch.chdir(workspace.start(EXERCISE, tmp_path / "copy"))
    benchmark = job_repair.load(Path(grade.BENCHMARK), "communication_benchmark")
    monkeypatch.setattr("sys.argv", [grade.BENCHMARK, "--cpu"])
    benchmark.main()
    out = capsys.readouterr().out
    assert "gloo: measured" in out and "buckets of 2048 MB" in out
    assert load(Path("links.json")).backend == "gloo"


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
    assert (
        f"{grade.GOAL.faster:g} times as fast" in text and f"within {100 * grade.PREDICTION_FRAC:g} %" in text
    )
