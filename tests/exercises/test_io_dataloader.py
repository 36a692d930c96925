# SPDX-License-Identifier: Apache-2.0
"""E18: the wait and its cause are read from samples; a repaired loader gives equal batches with less work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from builders import TraceBuilder

from profiling_lab.cli import build_parser, main
from profiling_lab.exercises import find, program_repair, workspace
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.e18_io_dataloader.grade import starvation
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck
from profiling_lab.rules import RULES
from profiling_lab.rules.run import run
from profiling_lab.trace import Trace

EXERCISE = find("io-dataloader")
STARTER = EXERCISE.folder / "train.py"
SOLUTION = (EXERCISE.folder / workspace.SOLUTIONS / "train.py").read_text()
MS = 1_000_000
LOADER = "/usr/lib/python3/site-packages/torch/utils/data/dataloader.py"
NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def line_of(text: str) -> int:
    found = [i for i, line in enumerate(STARTER.read_text().splitlines(), 1) if text in line]
    assert len(found) == 1, f"{text!r} stands {len(found)} times in train.py"
    return found[0]


def at(text: str, function: str, shift: int = 0) -> str:
    return f"/home/learner/train.py:{line_of(text) + shift} {function}"


def made(path: Path, shift: int = 0, decoding: int = 60, gpu: bool = False) -> Path:
    """100 samples: `decoding` in the planted line, 10 where the file is opened, 5 in `next` itself, the rest
    in backward.
    """
    builder = TraceBuilder()
    waiting = f"{at('x, labels = next(batches)', 'train', shift)} > {LOADER}:700 _BaseDataLoaderIter.__next__"
    decode = at("image = torch.tensor([self", "Images.__getitem__", shift)
    stacks = [f"{waiting} > {decode}"] * decoding
    stacks += [f"{waiting} > {at('with open(self.path', 'Images.__getitem__', shift)}"] * 10
    stacks += [waiting] * 5
    stacks += [at("loss.backward()", "train", shift)] * (85 - decoding)
    for number, stack in enumerate(stacks):
        builder.sample((1 + number) * MS, stack)
    if gpu:
        for _ in range(10):
            begin = builder.now_ns
            builder.range(NEXT, begin, begin + 6 * MS)
            builder.gap(6 * MS).launch("sgemm", 1 * MS, stack=at("loss = F.cross_entropy(", "train"))
            builder.sample(begin + 3 * MS, f"{waiting} > {decode}")
    return builder.write(path)


def answers(**changes: object) -> Answers:
    right = {
        "trace": "run.sqlite",
        "finding.file": "train.py",
        "finding.line": line_of("image = torch.tensor([self"),
        "finding.size": 60.0,
        "finding.wait_line": line_of("x, labels = next(batches)"),
        "finding.wait_share": 75.0,
        "fix.cause": "I saw it",
        "fix.change": "I changed it",
    }
    return Answers({**right, **{f"finding.{key}": value for key, value in changes.items()}})


def findings(folder: Path, **changes: object) -> dict[str, GradedCheck]:
    return {check.name: check for check in EXERCISE.findings(folder, answers(**changes))}


def failed(checks: dict[str, GradedCheck]) -> set[str]:
    return {name for name, check in checks.items() if check.status is CheckStatus.FAILED}


def test_what_a_learner_reads_from_the_tables_is_right(tmp_path: Path) -> None:
    made(tmp_path / "run.sqlite")
    checks = findings(tmp_path)
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks


@pytest.mark.parametrize(
    ("answer", "check"),
    [
        ({"line": line_of("x, labels = next(batches)")}, "line"),
        ({"line": line_of("with open(self.path")}, "line"),
        ({"file": "dataloader.py"}, "line"),
        ({"size": 74.5}, "size"),  # copied from the recording that comes with the exercise
        ({"size": 0.6}, "size"),
        ({"wait_line": line_of("loss.backward()")}, "wait"),
        ({"wait_share": 93.2}, "wait_share"),
        ({"wait_share": 5.0}, "wait_share"),
        ({"wait_share": 0.75}, "wait_share"),
    ],
)
def test_wrong_answers_are_rejected(answer: dict[str, object], check: str, tmp_path: Path) -> None:
    made(tmp_path / "run.sqlite")
    assert failed(findings(tmp_path, **answer)) == {check}


def test_lines_of_another_version_of_the_program_are_rejected(tmp_path: Path) -> None:
    made(tmp_path / "run.sqlite", shift=2)
    assert failed(findings(tmp_path)) == {"line", "wait"}


def test_a_recording_of_the_repaired_program_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "run.sqlite", decoding=3)
    checks = findings(tmp_path)
    assert failed(checks) == {"recording"} and "does not show the problem" in checks["recording"].message


def test_check_names_the_loader_in_a_recording_with_a_gpu(tmp_path: Path) -> None:
    with Trace.open(made(tmp_path / "run.sqlite", gpu=True)) as trace:
        found = run(trace, RULES).findings
    assert {f.rule for f in found} & set(EXERCISE.rules), [(f.rule, f.what) for f in found]


def test_recorded_starter_starves_and_recorded_solution_does_not() -> None:
    recorded = EXERCISE.folder / workspace.RECORDED
    before, after = starvation(recorded / "starter_cpu.sqlite"), starvation(recorded / "solution_cpu.sqlite")
    assert after <= 0.2 * before


@pytest.mark.parametrize(
    ("decoding", "status"), [(2, CheckStatus.FAILED), (0, CheckStatus.PASSED), (60, CheckStatus.FAILED)]
)
def test_the_wait_in_the_recording_of_the_repair_decides(
    decoding: int, status: CheckStatus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from profiling_lab.exercises.e18_io_dataloader import grade

    monkeypatch.setattr(grade, "WAITS_AT_MOST_FRAC", 0.06)
    made(tmp_path / "run.sqlite")  # 75 waiting, 25 working: 3
    made(tmp_path / "after.sqlite", decoding=decoding)  # 15 and 85: 0.176; 17 and 83: 0.205
    given = Answers({**answers().values, "fix.after": "after.sqlite"})
    (tmp_path / "train.py").write_text(STARTER.read_text())
    checks = {check.name: check for check in EXERCISE.repair(tmp_path, given)}
    assert checks["starvation"].status is status


def test_without_a_recording_of_the_repair_the_wait_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STARTER.read_text())
    checks = {check.name: check for check in EXERCISE.repair(tmp_path, answers())}
    assert checks["starvation"].status is CheckStatus.NOT_CHECKED and "step 4" in checks["starvation"].message


# Repairs.

WORKERS = (
    "return DataLoader(Images(path), batch_size=batch_size, drop_last=True",
    "return DataLoader(Images(path), batch_size=batch_size, drop_last=True, num_workers=4",
)
DECODED_BEFORE = """

_Images = Images


class Images(Dataset):
    def __init__(self, path):
        images = _Images(path)
        self.ready = [images[number] for number in range(len(images))]

    def __len__(self):
        return len(self.ready)

    def __getitem__(self, number):
        return self.ready[number]
"""
REMEMBERED = """

_make, _found = make_loader, {}


def make_loader(path, batch_size=32):
    if batch_size not in _found:
        _found[batch_size] = list(_make(path, batch_size))
    return _found[batch_size]
"""


def judged(text: str, folder: Path) -> dict[str, GradedCheck]:
    (folder / "train.py").write_text(text)
    return {check.name: check for check in EXERCISE.repair(folder, answers())}


def test_solution_gives_the_same_batches_with_a_tenth_of_the_work(tmp_path: Path) -> None:
    checks = judged(SOLUTION, tmp_path)
    assert checks["result"].status is checks["work"].status is CheckStatus.PASSED, checks


def test_workers_are_welcome_in_a_repaired_loader(tmp_path: Path) -> None:
    checks = judged(SOLUTION.replace(*WORKERS), tmp_path)
    assert checks["result"].status is checks["work"].status is CheckStatus.PASSED, checks


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        pytest.param(
            "normalized(images), records", "images, records", "images of batch 0", id="deleted step"
        ),
        pytest.param("records[:, 0].long()", "records[:, 0]", "labels of batch 0", id="another dtype"),
        pytest.param("drop_last=True", "drop_last=True, shuffle=True", "of batch 0", id="another order"),
        pytest.param(
            "batch_size=batch_size", "batch_size=2 * batch_size", "batches, expected", id="another size"
        ),
        pytest.param(
            "self.scale[records[:, 1:].int()]", "torch.zeros(len(records), RECORD - 1)", "values", id="zeros"
        ),
        pytest.param(
            "return normalized(images), ", "return torch.rand_like(images), ", "values", id="random"
        ),
        pytest.param("def make_loader(", "def loader(", "AttributeError", id="no make_loader"),
    ],
)
def test_loaders_of_something_else_are_rejected(old: str, new: str, hint: str, tmp_path: Path) -> None:
    assert old in SOLUTION
    checks = judged(SOLUTION.replace(old, new), tmp_path)
    assert checks["result"].status is CheckStatus.FAILED and hint in checks["result"].message


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(STARTER.read_text().replace(*WORKERS), id="workers alone"),
        pytest.param(STARTER.read_text() + DECODED_BEFORE, id="decoded in advance"),
        pytest.param(STARTER.read_text() + "\n", id="nothing changed"),
    ],
)
def test_the_same_work_elsewhere_is_no_repair(text: str, tmp_path: Path) -> None:
    checks = judged(text, tmp_path)
    assert failed(checks) == {"work"} and "the goal is at most 10 %" in checks["work"].message


def test_batches_remembered_from_another_file_are_rejected(tmp_path: Path) -> None:
    checks = judged(STARTER.read_text() + REMEMBERED, tmp_path)
    assert failed(checks) == {"result"}


def test_both_programs_train_alike(tmp_path: Path) -> None:
    losses = []
    for path in (STARTER, EXERCISE.folder / workspace.SOLUTIONS / "train.py"):
        program = program_repair.load(path, "dataloader_program")
        program.write_images(tmp_path / "images.bin", 32)
        torch.manual_seed(0)
        loader = program.make_loader(tmp_path / "images.bin", batch_size=8)
        losses.append(program.train(program.Network(), loader, 4, "cpu"))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


# What a learner reads.


def test_commands_of_the_readme_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "run1.sqlite")
    made(tmp_path / "run2.sqlite", gpu=True)
    text = (EXERCISE.folder / "README.md").read_text()
    assert "at most a tenth of the Python instructions" in text and "at most a fifth as long" in text
    commands = re.findall(r"^    profiling-lab (.+?)(?:\s+#.*)?$", text, re.M)
    assert len(commands) >= 9
    for command in commands:
        arguments = command.split()
        build_parser().parse_args(arguments)
        if {"run1.sqlite", "run2.sqlite"} & set(arguments):
            assert main(arguments) in (0, 1), f"{command}: {capsys.readouterr().err}"
    assert len(workspace.hints(EXERCISE)) == 3
