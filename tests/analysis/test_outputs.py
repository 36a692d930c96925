# SPDX-License-Identifier: Apache-2.0
"""What two programs print: the same within a tolerance, or not, or not to be told."""

from __future__ import annotations

import re

import pytest

from profiling_lab.analysis.diff.outputs import Output, OutputCheck, compare_outputs

LOSS = re.compile(r"loss (\S+)")


def runs(side: str, *texts: str) -> list[Output]:
    return [Output(f"{side}, run {i}", text) for i, text in enumerate(texts, 1)]


def compared(a: str, b: str, **wanted: object) -> tuple[str, str]:
    asked = OutputCheck((LOSS,), **wanted) if not wanted.get("whole") else OutputCheck((), **wanted)  # type: ignore[arg-type]
    found = compare_outputs(runs("A", a), runs("B", b), asked)
    return found.state, found.sentence


@pytest.mark.parametrize(
    ("a", "b", "wanted", "state"),
    [
        ("loss 2.0", "loss 2.0", {}, "same"),
        ("loss 2.0", "loss 2.00", {}, "same"),
        ("loss 2.0", "loss 2.001", {}, "differ"),
        ("loss 2.0", "loss 2.001", {"rtol": 1e-3}, "same"),
        ("loss 2.0", "loss 1.997", {"rtol": 1e-3}, "differ"),
        ("loss 0.0", "loss 1e-9", {"rtol": 1e-3}, "differ"),
        ("loss 0.0", "loss 1e-9", {"atol": 1e-8}, "same"),
        ("loss 2.31, lr 1", "loss 2.32, lr 2", {"rtol": 0.01}, "same"),
        ("loss nan", "loss nan", {}, "same"),
        ("loss nan", "loss 2.0", {"rtol": 1.0}, "differ"),
        ("loss inf", "loss inf", {}, "same"),
        ("loss inf", "loss -inf", {"rtol": 1.0}, "differ"),
        ("loss low", "loss low", {}, "same"),
        ("loss low", "loss high", {"rtol": 1.0}, "differ"),
        ("loss 1\nloss 2", "loss 1", {}, "differ"),
        ("loss 1", "lost", {}, "differ"),
        ("epoch 1 took 3 s", "epoch 1 took 4 s", {}, "undecided"),
        ("x  1.0\ny", "x 1.1\ny", {"whole": True, "rtol": 0.2}, "same"),
        ("x 1.0\ny", "x 1.0\nz", {"whole": True, "rtol": 0.1}, "differ"),
        ("x 1.0\ny", "x 1.0", {"whole": True}, "differ"),
        ("", "", {"whole": True}, "same"),
    ],
)
def test_sides(a: str, b: str, wanted: dict[str, object], state: str) -> None:
    assert compared(a, b, **wanted)[0] == state


def test_difference_is_told_with_both_values_and_how_far_they_are_apart() -> None:
    _, sentence = compared("loss 3\nloss 2.0\n", "loss 3\nloss 2.5\n", rtol=0.1)
    assert (
        sentence == "'loss (\\S+)' differs: number 2 is '2.0' in A, run 1 and '2.5' in B, run 1 (0.25 of it)"
    )
    _, sentence = compared("loss 3\nloss 2\n", "loss 3\n")
    assert sentence.endswith("differs: 2 in A, run 1 and 1 in B, run 1")


def test_agreement_says_how_many_values_and_how_close() -> None:
    assert compared("loss 3\nloss 2", "loss 3\nloss 2", rtol=0.01)[1] == (
        "'loss (\\S+)' is the same in all 2 runs, 2 values a run, within rtol 0.01"
    )
    assert compared("a", "a", whole=True)[1] == "the standard output is the same in all 2 runs, exactly"


def test_program_that_does_not_agree_with_itself_decides_nothing() -> None:
    found = compare_outputs(
        runs("A", "loss 1", "loss 2"), runs("B", "loss 1", "loss 1"), OutputCheck((LOSS,))
    )
    assert (
        found.state == "undecided" and "runs of one program" in found.sentence and "--rtol" in found.sentence
    )


def test_second_run_of_the_other_side_counts() -> None:
    found = compare_outputs(
        runs("A", "loss 1", "loss 1"), runs("B", "loss 1", "loss 2"), OutputCheck((LOSS,))
    )
    assert found.state == "differ" and "B, run 2" in found.sentence


def test_standard_error_is_searched_where_standard_output_has_nothing() -> None:
    a, b = [Output("A, run 1", "", "loss 1")], [Output("B, run 1", "hello", "loss 2")]
    assert compare_outputs(a, b, OutputCheck((LOSS,))).state == "differ"
    b = [Output("B, run 1", "loss 1", "loss 2")]
    assert compare_outputs(a, b, OutputCheck((LOSS,))).state == "same"


def test_nothing_asked_is_said() -> None:
    found = compare_outputs(runs("A", "x"), runs("B", "y"), OutputCheck())
    assert found.state == "unchecked" and "--same" in found.sentence
