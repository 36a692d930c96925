# SPDX-License-Identifier: Apache-2.0
"""E36: each fault is there, is found where it arises, and is repaired only by repairing the arithmetic."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from exercises.readme_commands import run_all
from torch.nn import functional as F

from profiling_lab.exercises import find, workspace
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.e36_numerical_issues import grade, repair
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck
from profiling_lab.exercises.program_repair import load

EXERCISE = find("numerical-issues")
STARTER = load(EXERCISE.folder / grade.PROGRAM, "numerical_starter")
SOLUTION = load(EXERCISE.folder / workspace.SOLUTIONS / grade.PROGRAM, "numerical_solution")
WATCH = load(EXERCISE.folder / "watch.py", "numerical_watch")
every_case = pytest.mark.parametrize("case", STARTER.CASES)


def line_of(text: str) -> int:
    lines = (EXERCISE.folder / grade.PROGRAM).read_text().splitlines()
    (found,) = (number for number, line in enumerate(lines, 1) if text in line)
    return found


def distances(program: object, case: str, seed: int) -> list[str]:
    inputs = STARTER.make_case(case, seed)
    exact, rounded = (repair.reference(inputs, dtype) for dtype in (torch.float64, torch.float32))
    result, gradients = repair.outcome(program, inputs)  # type: ignore[arg-type]
    said = [repair.difference("the result", result, exact[0], rounded[0])]
    for name, right in exact[1].items():
        said.append(repair.difference(f"the gradient of {name}", gradients[name], right, rounded[1][name]))
    return [each for each in said if each]


@every_case
def test_every_case_is_wrong_before_and_right_after(case: str) -> None:
    for seed in range(3):
        assert distances(STARTER, case, seed), "the starter's fault depends on the seed"
        assert distances(SOLUTION, case, seed) == []


def test_the_padded_case_is_wrong_in_its_gradients_alone() -> None:
    """But for the rounding of its sums, which all cases have."""
    sound = load(EXERCISE.folder / grade.PROGRAM, "sound_sums")
    sound.SUMS = torch.float32
    assert distances(sound, "usual", 0) == []
    wrong = distances(sound, "padded", 0)
    assert wrong and all(each.startswith("the gradient") and "NaN" in each for each in wrong)


@pytest.mark.parametrize(
    ("case", "text", "size"),
    [
        ("offset", "- mean.square()", 4e6),
        ("scale", "scores.exp()", 305),
        ("masked", "mixed / total", 48),
        ("long", "part.sum(-1", 16.2),
        ("padded", "x / length", 48),
    ],
)
def test_the_first_wrong_number_is_where_the_fault_is(case: str, text: str, size: float) -> None:
    found = grade.truth(case)
    assert line_of(text) in found.lines
    assert found.size == pytest.approx(size, rel=grade.SLACK_FRAC)


def test_the_reference_is_the_attention_of_torch() -> None:
    inputs = STARTER.make_case("usual", 3)
    x, context, parameters, allowed, scale = WATCH.in_double(inputs)
    normal = F.layer_norm(x, x.shape[-1:], parameters["weight"], parameters["bias"], repair.EPSILON)
    q, k = (F.normalize(each, dim=-1) for each in (normal @ parameters["q"], context @ parameters["k"]))
    mixed = F.scaled_dot_product_attention(
        q[None], k[None], (context @ parameters["v"])[None], allowed[None], scale=scale
    )[0]
    expected = normal + mixed @ parameters["out"]
    torch.testing.assert_close(repair.reference(inputs, torch.float64)[0], expected)
    torch.testing.assert_close(SOLUTION.block(*inputs), expected.float(), rtol=1e-4, atol=1e-5)


def test_the_gradients_of_the_reference_are_finite_differences() -> None:
    inputs = STARTER.make_case("masked", 4)
    x, context, parameters, allowed, scale = WATCH.in_double(inputs)
    _, gradients = repair.reference(inputs, torch.float64)
    step = torch.zeros_like(parameters["k"])
    step[2, 3] = 1e-6
    sides = []
    for sign in (1, -1):
        changed = {**parameters, "k": parameters["k"] + sign * step}
        result, _ = repair.reference((x, context, changed, allowed, scale), torch.float64)
        sides.append(result.square().sum())
    assert float((sides[0] - sides[1]) / 2e-6) == pytest.approx(float(gradients["k"][2, 3]), rel=1e-4)


def test_a_row_without_keys_gets_nothing_added() -> None:
    x, context, parameters, allowed, scale = STARTER.make_case("masked", 5)
    blind = ~allowed.any(-1)
    normal = SOLUTION.layer_norm(x, parameters["weight"], parameters["bias"])
    result = SOLUTION.block(x, context, parameters, allowed, scale)
    assert blind.sum() == 3 and torch.equal(result[blind], normal[blind])


def judged(text: str, folder: Path) -> dict[str, GradedCheck]:
    (folder / grade.PROGRAM).write_text(text)
    return {check.name: check for check in EXERCISE.repair(folder, Answers({}))}


FUSED = """
def attend(q, k, v, allowed, scale):
    blind = ~allowed.any(-1, keepdim=True)
    scores = (scale * (q @ k.T)).masked_fill(~allowed, float("-inf")).masked_fill(blind, 0.0)
    return torch.softmax(scores, dim=-1).masked_fill(blind, 0.0) @ v
"""
ONLINE = """
def attend(q, k, v, allowed, scale):
    largest = torch.full((len(q), 1), -1e30)
    total, mixed = torch.zeros(len(q), 1), torch.zeros(len(q), v.shape[1])
    for start in range(0, len(k), 64):
        scores = (scale * (q @ k[start : start + 64].T)).masked_fill(~allowed[:, start : start + 64], -1e30)
        now = torch.maximum(largest, scores.detach().amax(-1, keepdim=True))
        weights = (scores - now).exp() * allowed[:, start : start + 64]
        shrink = (largest - now).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        mixed = mixed * shrink + weights @ v[start : start + 64]
        largest = now
    return mixed / total.clamp(min=1.0)
"""
IN_NUMPY = """
def attend(q, k, v, allowed, scale):
    zeros = torch.from_numpy((q.detach().numpy().astype("float64") * 0).astype("float32"))
    return zeros + _attend(q, k, v, allowed, scale)
"""
SOLVED = (EXERCISE.folder / workspace.SOLUTIONS / grade.PROGRAM).read_text()


def with_attend(text: str) -> str:
    begin, end = SOLVED.index("def attend("), SOLVED.index("def block(")
    return SOLVED[:begin] + text.lstrip() + "\n\n" + SOLVED[end:]


@pytest.mark.parametrize("attend", [FUSED, ONLINE], ids=["softmax of torch", "online softmax"])
def test_other_repairs_are_as_good(attend: str, tmp_path: Path) -> None:
    checks = judged(with_attend(attend), tmp_path)
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks


def test_numbers_that_leave_torch_are_noticed(tmp_path: Path) -> None:
    text = SOLVED.replace("def attend(", "def _attend(").replace(
        "def block(", IN_NUMPY.lstrip() + "\n\ndef block("
    )
    checks = judged(text, tmp_path)
    assert checks["precision"].status is CheckStatus.FAILED and "leave torch" in checks["precision"].message


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        pytest.param((EXERCISE.folder / grade.PROGRAM).read_text(), "is unchanged", id="unchanged"),
        pytest.param(SOLVED.replace("def block(", "def blocks("), "AttributeError", id="no block"),
        pytest.param(SOLVED.replace("return x + attend", "return None and attend"), "raises", id="no result"),
        pytest.param(
            SOLVED + "\n_block, _kept = block, []\n\n\ndef block(*given):\n"
            "    _kept[:] = _kept or [_block(*given).detach()]\n    return _kept[0]\n",
            "raises|wrong|shape",
            id="cached between calls",
        ),
    ],
)
def test_what_is_no_repair_is_told(text: str, hint: str, tmp_path: Path) -> None:
    checks = judged(text, tmp_path)
    assert checks["result"].status is CheckStatus.FAILED and re.search(hint, checks["result"].message)
    assert {checks[name].status for name in ("gradients", "precision")} == {CheckStatus.NOT_CHECKED}


def test_watch_says_what_is_there_and_refuses_other_cases(tmp_path: Path) -> None:
    folder = workspace.start(EXERCISE, tmp_path / "copy")
    done = subprocess.run(
        (sys.executable, "watch.py", "nonsense"), cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 2 and "there are usual, offset" in done.stderr
    rows = WATCH.rows(folder / grade.PROGRAM, STARTER.make_case("usual"))
    assert max(row.error for row in rows if row.dtype == "float32" and row.line < 40) < 1e-5
    assert not any(row.nan or row.inf for row in rows)


def test_the_recorded_console_has_the_lines_of_the_program() -> None:
    text = (EXERCISE.folder / "recorded" / "console.txt").read_text()
    assert all(f"$ python watch.py {case}" in text for case in grade.KIND_OF)
    assert f'"attention.py", line {grade.truth("padded").lines[0]}, in unit' in text


def test_the_table_of_kinds_is_that_of_the_check() -> None:
    text = (EXERCISE.folder / "README.md").read_text().partition("| kind |")[2]
    assert tuple(re.findall(r"^\| `([^`]+)` \|", text, re.M)) == grade.KINDS


def test_commands_of_the_readme_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(run_all(EXERCISE, tmp_path, monkeypatch)) >= 8
    assert len(workspace.hints(EXERCISE)) == 3
