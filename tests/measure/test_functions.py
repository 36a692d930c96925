# SPDX-License-Identifier: Apache-2.0
"""Functions by name, and whether two of them return the same."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch

from profiling_lab.errors import LabError, NotEnoughDataError, UnreadableInputError, UsageError
from profiling_lab.measure.agreement import agreement
from profiling_lab.measure.functions import load


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(dedent(text))
    return path


def test_inputs_are_arguments(tmp_path: Path) -> None:
    def results(inputs: str, function: str) -> object:
        file = write(
            tmp_path / "a.py", f"def inputs():\n    return {inputs}\ndef f({function}:\n    return a, b\n"
        )
        (found,) = load([f"{file}:f"])
        return found.result(seed=0)[0]

    assert results("1, 2", "a, b)") == (1, 2)
    assert results("{'b': 1, 'a': 2}", "a, b)") == (2, 1)
    assert results("[1, 2]", "a, b=3)") == ([1, 2], 3), "a list is one argument"
    assert results("None", "a, b=3)") == (None, 3)


def test_each_function_has_inputs_of_its_own_and_they_are_the_same(tmp_path: Path) -> None:
    first = write(
        tmp_path / "a.py",
        """
        import random, torch
        def inputs():
            return torch.rand(3), random.random()
        def f(x, y):
            x += 1
            return x, y, torch.rand(1)
        """,
    )
    other = write(tmp_path / "b.py", "def g(x, y): return x + 1, y, __import__('torch').rand(1)")
    f, g, again = load([f"{first}:f", f"{other}:g", f"{first}:f"])
    assert again.name == f"{first}:f (2)"
    (a, _), (b, _), (c, _) = f.result(7), g.result(7), again.result(7)
    assert agreement(a, b, 0, 0).state == "agree" and agreement(a, c, 0, 0).state == "agree"
    assert agreement(a, f.result(8)[0], 0, 0).state == "differ", "the seed is used"


def test_a_file_may_have_inputs_of_its_own(tmp_path: Path) -> None:
    first = write(tmp_path / "a.py", "def inputs(): return 1\ndef f(x): return x")
    other = write(tmp_path / "b.py", "def inputs(): return 2\ndef f(x): return x")
    assert [each.result(0)[0] for each in load([f"{first}:f", f"{other}:f"])] == [1, 2]


def test_files_import_their_neighbours_but_not_each_others(tmp_path: Path) -> None:
    write(tmp_path / "one" / "bench_helper.py", "value = 1")
    one = write(tmp_path / "one" / "a.py", "import bench_helper\ndef f(): return bench_helper.value")
    two = write(tmp_path / "two" / "b.py", "def f(): return 2")
    assert [each.result(0)[0] for each in load([f"{one}:f", f"{two}:f"])] == [1, 2]
    write(tmp_path / "two" / "bench_helper.py", "value = 2")
    with pytest.raises(UsageError, match=r"the module bench_helper is loaded from .*one, and .*two has one"):
        load([f"{one}:f", f"{two}:f"])


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("a.py", UsageError, "expected FILE:FUNCTION, such as a.py:f, not 'a.py'"),
        ("a.py:", UsageError, "expected FILE:FUNCTION"),
        (":f", UsageError, "expected FILE:FUNCTION"),
        ("missing.py:f", UnreadableInputError, "there is no file missing.py"),
        ("text.txt:f", UsageError, r"expected a Python file \(.py\), not text.txt"),
        ("a.py:forwards", UsageError, "a.py has no forwards; did you mean forward?"),
        ("a.py:zzz", UsageError, "a.py has no zzz; it has forward, Model"),
        ("a.py:Model.zzz", UsageError, "a.py has no Model.zzz"),
        ("a.py:number", UsageError, "number in a.py is not a function, but int"),
        ("broken.py:f", LabError, "broken.py raised ZeroDivisionError: division by zero while it was loaded"),
        ("exits.py:f", LabError, "exits.py raised SystemExit: 5 while it was loaded"),
        ("empty.py:f", UsageError, "empty.py has no f; it defines no function"),
        ("wrong.py:f", UsageError, "inputs in the file of wrong.py:f must be a function"),
    ],
)
def test_what_cannot_be_loaded(
    name: str, kind: type[LabError], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.py", "number = 5\ndef forward(): pass\nclass Model:\n    pass")
    write(tmp_path / "broken.py", "1 / 0")
    write(tmp_path / "exits.py", "raise SystemExit(5)")
    write(tmp_path / "wrong.py", "inputs = 5\ndef f(): pass")
    (tmp_path / "text.txt").touch()
    (tmp_path / "empty.py").touch()
    with pytest.raises(kind, match=says) as caught:
        load([name])
    assert type(caught.value) is kind


def test_whose_failure_it_is(tmp_path: Path) -> None:
    file = write(tmp_path / "a.py", "def f(): raise ValueError('too\\n small')\ndef inputs(): return ()")
    first, second = load([f"{file}:f", f"{file}:f"])
    with pytest.raises(NotEnoughDataError, match=r"a.py:f raised ValueError: too small"):
        first.result(0)
    with pytest.raises(LabError, match="raised ValueError") as caught:
        second.result(0)
    assert caught.value.exit_code == 1
    write(file, "def f(): pass\ndef inputs(): raise KeyError")
    with pytest.raises(NotEnoughDataError, match=r"inputs\(\) for .*a.py:f raised KeyError"):
        load([f"{file}:f"])[0].result(0)


@pytest.mark.parametrize(
    ("first", "other", "rtol", "atol", "state"),
    [
        (1.0, 1.01, 0.02, 0, "agree"),
        (1.0, 1.03, 0.02, 0, "differ"),
        (1.0, 1.03, 0, 0.05, "agree"),
        (100.0, 101.0, 0.02, 0, "agree"),
        (0.1, 0.11, 0.02, 0, "differ"),
        (100, 101, 0, 0, "differ"),
        (torch.ones(3, dtype=torch.bfloat16), np.ones(3), 0, 0, "agree"),
        (torch.ones(3), torch.ones(1, 3), 1, 1, "differ"),
        (torch.ones(3, requires_grad=True), [1.0, 1.0, 1.0], 0, 0, "differ"),
        (float("nan"), float("nan"), 0, 0, "agree"),
        (float("nan"), 1.0, 9, 9, "differ"),
        (float("inf"), float("inf"), 0, 0, "agree"),
        (float("inf"), 1.0, 0, 5, "differ"),
        (float("inf"), float("-inf"), 0, 5, "differ"),
        (1 + 2j, torch.tensor(1 + 2j), 0, 0, "agree"),
        (1 + 2j, 1 + 3j, 0, 0.5, "differ"),
        ({"a": (1, "x")}, {"a": [1, "x"]}, 0, 0, "agree"),
        ({"a": (1, "x")}, {"a": [1, "y"]}, 9, 9, "differ"),
        ({"a": 1}, {"b": 1}, 9, 9, "differ"),
        ("1", 1, 9, 9, "differ"),
        (True, 1, 0, 0, "agree"),
        (torch.empty(0), torch.empty(0), 0, 0, "agree"),
        (None, None, 0, 0, "not compared"),
        (np.datetime64("2026-01-01"), np.datetime64("2026-01-01"), 0, 0, "agree"),
        (object(), object(), 9, 9, "not compared"),
        (1, object(), 9, 9, "differ"),
    ],
)
def test_agreement(first: object, other: object, rtol: float, atol: float, state: str) -> None:
    found = agreement(first, other, rtol, atol)
    assert found.state == state, found
    assert bool(found.detail) == (state != "agree")


def test_where_and_by_how_much() -> None:
    first = {"loss": 1.0, "grads": [torch.zeros(2, 2), torch.tensor([1.0, 2.0, 3.0])]}
    other = {"loss": 1.0, "grads": [torch.zeros(2, 2), torch.tensor([1.0, 2.5, 4.0])]}
    found = agreement(first, other, 0.1, 0)
    assert found.detail == (
        "result['grads'][1]: 2 of 3 numbers differ by more than the tolerance, the first 2 and 2.5"
    )
    assert agreement(first, other, 0, 1).largest_difference == 1.0
    assert agreement({"a": 1}, {"a": 1, "b": 2}, 0, 0).detail == "only this has result['b']"
    assert agreement({"a": 1}, 1, 0, 0).detail == "only this has a single value"
    assert agreement("a", "a", 0, 0).largest_difference is None, "there are no numbers"


def test_values_that_cannot_be_compared_are_not_said_to_agree() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError

    assert agreement(Odd(), Odd(), 0, 0).detail == "result: values of the type Odd"
