# SPDX-License-Identifier: Apache-2.0
"""E10: the answers follow the memory events of a trace; the repair is judged by results and peak."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from exercises.readme_commands import run_all

from profiling_lab.cli import main
from profiling_lab.exercises import answers, find, workspace
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.e10_memory_profiling import grade, repair
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck

EXERCISE = find("memory-profiling")
MEMORY = grade.tool()
STARTER = (EXERCISE.folder / grade.PROGRAM).read_text()
SOLVED = (EXERCISE.folder / workspace.SOLUTIONS / grade.PROGRAM).read_text()
MB = 1_000_000


class MemoryTrace:
    """Memory events with sizes chosen here, in MB, within ranges and operators of one thread."""

    def __init__(self) -> None:
        self.events: list[dict[str, object]] = []
        self.now, self.address = 100.0, 0

    def span(self, name: str, category: str, begin: float) -> None:
        self._add(ph="X", cat=category, name=name, ts=begin, dur=self.now - begin)

    def allocate(self, mb: float, op: str = "aten::add") -> int:
        begin, self.address = self.now, self.address + 1
        self.now += 1
        self._memory(int(mb * MB), self.address)
        self.now += 1
        self.span(op, "cpu_op", begin)
        return self.address

    def free(self, address: int, mb: float) -> None:
        self.now += 1
        self._memory(-int(mb * MB), address)

    def _memory(self, size: int, address: int) -> None:
        args = {"Bytes": size, "Addr": address, "Device Type": 0, "Total Allocated": 0}
        self._add(ph="i", cat="cpu_instant_event", name="[memory]", ts=self.now, args=args)

    def _add(self, **event: object) -> None:
        self.events.append({"pid": 1, "tid": 1, **event})

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps({"traceEvents": self.events}))
        return path


def made(path: Path, batches: int = 3, kept: float = 2.0) -> Path:
    """One training step that keeps `kept` MB, then batches of evaluation that keep 10 MB each."""
    trace = MemoryTrace()
    step = trace.now
    trace.allocate(kept, "aten::gelu")
    trace.span("forward", "user_annotation", step)
    begin = trace.now
    parts = [
        trace.allocate(4.0, "aten::mul"),
        trace.allocate(4.0, "aten::mul"),
        trace.allocate(7.0, "aten::one_hot"),
    ]
    trace.span("loss", "user_annotation", begin)
    for address, mb in zip(parts, (4.0, 4.0, 7.0), strict=True):
        trace.free(address, mb)
    begin = trace.now
    trace.allocate(1.5, "aten::zeros_like")
    trace.span("Optimizer.step#AdamW.step", "user_annotation", begin)
    trace.span("optimizer", "user_annotation", begin)
    trace.span("train", "user_annotation", step)
    whole = trace.now
    for _ in range(batches):
        begin = trace.now
        trace.allocate(10.0, "aten::log_softmax")
        trace.span("loss", "user_annotation", begin)
    trace.span("evaluate", "user_annotation", whole)
    return trace.write(path)


def right(**changes: object) -> Answers:
    values = {
        "trace": "trace.json",
        "peak.mb": 33.5,
        "peak.within": "evaluate",
        "peak.line": grade.planted("peak"),
        "list.mb": 2.0,
        "list.line": grade.planted("list"),
        "state.mb": 1.5,
        "state.needed": "yes",
        "loss.op": "aten::one_hot",
        "loss.line": grade.planted("loss"),
        "fix.cause": "I saw it",
        "fix.change": "I changed it",
    }
    return Answers({**values, **{key.replace("__", "."): value for key, value in changes.items()}})


def findings(folder: Path, **changes: object) -> dict[str, GradedCheck]:
    return {check.name: check for check in EXERCISE.findings(folder, right(**changes))}


def failed(checks: dict[str, GradedCheck]) -> set[str]:
    return {name for name, check in checks.items() if check.status is CheckStatus.FAILED}


def test_what_a_learner_reads_from_the_trace_is_right(tmp_path: Path) -> None:
    made(tmp_path / "trace.json")
    checks = findings(tmp_path)
    assert failed(checks) == set() and checks["recording"].message == "your own"


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"peak__mb": 88.6}, "peak mb"),  # copied from the trace that comes with the exercise
        ({"peak__mb": 33_500}, "peak mb"),
        ({"peak__within": "train"}, "peak within"),
        ({"list__mb": 6.29}, "list mb"),
        ({"state__mb": 2.64}, "state mb"),
        ({"state__needed": "perhaps"}, "state needed"),
        ({"loss__op": "aten::mul"}, "loss op"),
        ({"loss__line": 1}, "loss line"),
    ],
)
def test_wrong_answers_are_rejected(changes: dict[str, object], check: str, tmp_path: Path) -> None:
    made(tmp_path / "trace.json")
    assert failed(findings(tmp_path, **changes)) == {check}


@pytest.mark.parametrize(
    ("how", "hint"),
    [({"batches": 1}, "does not show the problem"), ({"kept": 0.0}, "does not show the problem")],
)
def test_a_trace_of_the_repaired_program_is_noticed(how: dict[str, float], hint: str, tmp_path: Path) -> None:
    made(tmp_path / "trace.json", **how)  # type: ignore[arg-type]
    if "kept" in how:
        trace = json.loads((tmp_path / "trace.json").read_text())
        trace["traceEvents"] = [
            each for each in trace["traceEvents"] if each.get("args", {}).get("Bytes") != 0
        ]
        (tmp_path / "trace.json").write_text(json.dumps(trace))
    checks = findings(tmp_path)
    assert failed(checks) == {"recording"} and hint in checks["recording"].message


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (None, "there is no trace.json"),
        ("{", "not a trace of torch.profiler"),
        ("[]", "not a trace of torch.profiler"),
        ('{"traceEvents": []}', "profile_memory=True"),
    ],
)
def test_what_is_no_trace_of_memory_is_told(text: str | None, hint: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "trace.json").write_text(text)
    checks = findings(tmp_path)
    assert failed(checks) == {"recording"} and hint in checks["recording"].message
    assert {check.status for name, check in checks.items() if name != "recording"} == {
        CheckStatus.NOT_CHECKED
    }


def test_a_peak_ends_with_what_is_freed_and_knows_ranges_within_ranges(tmp_path: Path) -> None:
    events = MEMORY.read(made(tmp_path / "trace.json"))
    assert MEMORY.peak(events, "train > loss").bytes == 17 * MB
    top = MEMORY.peak(events)
    assert (top.bytes, top.within) == (33_500_000, "evaluate > loss")
    assert {block.within for block in top.blocks} == {
        "train > forward",
        "train > optimizer",
        "evaluate > loss",
    }
    assert MEMORY.peak(events, "nowhere").blocks == ()


def test_memory_freed_that_was_never_seen_counts_nothing(tmp_path: Path) -> None:
    trace = MemoryTrace()
    trace.free(99, 5.0)
    trace.allocate(3.0)
    assert MEMORY.peak(MEMORY.read(trace.write(tmp_path / "t.json"))).bytes == 3 * MB


def test_the_torch_that_is_installed_writes_what_is_read(tmp_path: Path) -> None:
    """Names and nesting of its traces are not ours."""
    (tmp_path / grade.PROGRAM).write_text(STARTER)
    subprocess.run((sys.executable, grade.PROGRAM, "--small"), cwd=tmp_path, check=True, capture_output=True)
    found = grade.memory_facts(tmp_path / "trace.json")
    assert isinstance(found, grade.MemoryFacts), found
    assert found.within == "evaluate" and {"aten::one_hot", "aten::mul"} <= found.loss_ops
    assert found.list_mb == 6 * 2 * 8 * 16 * 4 / MB, "six steps, two layers, eight rows, 16 floats"


def test_the_recorded_trace_says_nothing_of_its_machine() -> None:
    text = gzip.decompress((EXERCISE.folder / grade.RECORDED).read_bytes()).decode()
    assert not re.search(r'"/(?!/)\w|/home|/root|/work|hostname', text)


# Repairs.


def judged(text: str, folder: Path) -> dict[str, GradedCheck]:
    (folder / grade.PROGRAM).write_text(text)
    return {check.name: check for check in EXERCISE.repair(folder, right())}


def changed(*pairs: tuple[str, str], text: str = SOLVED) -> str:
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


ONE_HOT = STARTER[STARTER.index("classes = scores.shape") : STARTER.index("\n\ndef training_step")]
CROSS = "return F.cross_entropy(scores, labels, label_smoothing=SMOOTHING)\n"
GATHERED = """\
log_p = F.log_softmax(scores, dim=1)
        of_label = log_p.gather(1, labels[:, None]).sum()
        return -((1 - SMOOTHING) * of_label + SMOOTHING * log_p.sum() / scores.shape[1]) / len(scores)
"""


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param((), id="the solution"),
        pytest.param(((CROSS, GATHERED),), id="written out without one_hot"),
        pytest.param(
            (
                (", torch.no_grad()", ", torch.inference_mode()"),
                ("    total = 0\n", "    total = 0.0\n    model.zero_grad(set_to_none=True)\n"),
                ("total = total + loss", "total += loss.item()"),
                ("(total / batches).item()", "total / batches"),
            ),
            id="numbers and no gradients",
        ),
    ],
)
def test_repairs_are_accepted_however_they_are_made(
    pairs: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    checks = judged(changed(*pairs), tmp_path)
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks


WITH_LIST = (
    ("self.sums, self.count = torch.zeros(width), 0", "self.seen = []"),
    ("                self.count += len(x)\n", ""),
)
NUMPY = (
    ("self.sums += x.detach().sum(0)", "self.seen.append(x.detach().numpy().copy())"),
    ("return self.sums / self.count", "return torch.from_numpy(np.concatenate(self.seen)).mean(0)"),
    ("import torch\n", "import numpy as np\nimport torch\n"),
)
BORROWED = (
    (
        "self.sums += x.detach().sum(0)",
        "own = np.empty(x.shape, x.new_zeros(1).numpy().dtype)\n"
        "                self.seen.append(torch.from_numpy(own).copy_(x.detach()))",
    ),
    ("return self.sums / self.count", "return torch.stack([each.sum(0) for each in self.seen]).sum(0) / "
     "sum(len(each) for each in self.seen)"),
    ("import torch\n", "import numpy as np\nimport torch\n"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("pairs", "hint"),
    [
        pytest.param(((", torch.no_grad()", ""),), "the goal is", id="the graphs stay"),
        pytest.param(
            ((", torch.no_grad()", ""), ("total = total + loss", "total = total + loss.detach()")),
            "the goal is",
            id="the graph of the batch before stays",
        ),
        pytest.param(
            ((CROSS, ONE_HOT),),
            "the goal is",
            id="one_hot stays",
        ),
        pytest.param(
            (*WITH_LIST, ("self.sums += x.detach().sum(0)", "self.seen.append(x.detach())"),
             ("return self.sums / self.count", "return torch.cat(self.seen).mean(0)")),
            "the goal is",
            id="the list stays, detached",
        ),
        pytest.param((*WITH_LIST, *NUMPY), "leave torch", id="the list in numpy"),
        pytest.param((*WITH_LIST, *BORROWED), "leave torch|not allocated", id="tensors in memory of numpy"),
    ],
)  # fmt: skip
def test_memory_that_is_still_held_is_no_repair(
    pairs: tuple[tuple[str, str], ...], hint: str, tmp_path: Path
) -> None:
    checks = judged(changed(*pairs), tmp_path)
    assert failed(checks) == {"peak"} and re.search(hint, checks["peak"].message), checks


REMEMBERED = """

_train, _found = train, []


def train(*given, **more):
    if not _found:
        _found.append(_train(*given, **more))
    return _found[0]
"""


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        pytest.param(STARTER, "is unchanged", id="unchanged"),
        pytest.param(changed(("loss.backward()", "pass")), "the|differ", id="no backward"),
        pytest.param(changed(("range(steps)", "range(1)")), "the losses has the shape", id="fewer steps"),
        pytest.param(
            changed(("self.sums += x.detach().sum(0)", "self.sums += x.detach().half().sum(0)")),
            "the activity differs",
            id="kept in half precision",
        ),
        pytest.param(SOLVED + REMEMBERED, "differ|shape", id="cached between runs"),
        pytest.param(changed(("def train(", "def training(")), "AttributeError|NameError", id="no train"),
    ],
)
def test_programs_that_compute_something_else_are_rejected(text: str, hint: str, tmp_path: Path) -> None:
    checks = judged(text, tmp_path)
    assert failed(checks) == {"result"} and re.search(hint, checks["result"].message), checks
    assert checks["peak"].status is CheckStatus.NOT_CHECKED


def test_grading_leaves_the_default_dtype_alone(tmp_path: Path) -> None:
    judged(changed(("def train(", "def training(")), tmp_path)
    assert torch.get_default_dtype() is torch.float32


# What a learner reads.


def test_profile_runs_the_program_and_names_its_trace(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    main(["exercise", "start", "10", "--to", str(folder)])
    (folder / grade.PROGRAM).write_text("open('trace.json', 'w').write('{}')\n")
    assert main(["exercise", "profile", str(folder)]) == 0
    assert 'trace = "trace.json"' in (folder / "answer.toml").read_text()


def test_memory_py_refuses_what_it_cannot_show(tmp_path: Path) -> None:
    folder = workspace.start(EXERCISE, tmp_path / "copy")
    command = (sys.executable, "memory.py", grade.RECORDED, "--within", "nowhere")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 2 and "none within that range" in done.stderr


def test_the_readme_and_the_notes_have_the_goal_and_the_figures() -> None:
    text = (EXERCISE.folder / "README.md").read_text()
    notes = (EXERCISE.folder / workspace.SOLUTIONS / workspace.NOTES).read_text()
    assert f"at most {100 * repair.AT_MOST_FRAC:g} %" in text
    found = grade.memory_facts(EXERCISE.folder / grade.RECORDED)
    assert isinstance(found, grade.MemoryFacts)
    for mb, digits in ((found.peak_mb, 1), (found.list_mb, 2), (found.state_mb, 2)):
        assert f"{mb:.{digits}f} MB" in notes
    given = answers.read(EXERCISE.folder / workspace.SOLUTIONS)
    assert all(given.integer(f"{name}.line") == grade.planted(name) for name in grade.LINES)
    assert all(f"ine {grade.planted(name)}," in notes for name in ("peak",))


def test_commands_of_the_readme_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(run_all(EXERCISE, tmp_path, monkeypatch)) >= 7
    assert len(workspace.hints(EXERCISE)) == 3
