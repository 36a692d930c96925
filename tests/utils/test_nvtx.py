# SPDX-License-Identifier: Apache-2.0
"""NVTX ranges through the library, through torch, and where neither is."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from package_root import PACKAGE_ROOT

from profiling_lab.utils import nvtx


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What torch's functions are called with, where the library is missing."""
    seen: list[Any] = []
    functions = SimpleNamespace(
        range_push=lambda name: seen.append(("push", name)),
        range_pop=lambda: seen.append("pop"),
        range_start=lambda name: seen.append(("start", name)) or 7,
        range_end=lambda number: seen.append(("end", number)),
        mark=lambda name: seen.append(("mark", name)),
    )
    monkeypatch.setattr(nvtx, "_library", lambda: None)
    monkeypatch.setattr(nvtx, "_torch_nvtx", lambda: functions)
    return seen


def test_range_and_mark(calls: list[Any]) -> None:
    with nvtx.range("outer"), nvtx.range("{not a format}"):
        nvtx.mark("point", color="red", domain="mine")
    assert calls == [("push", "outer"), ("push", "{not a format}"), ("mark", "point"), "pop", "pop"]


def test_annotate_as_in_the_chapter(calls: list[Any]) -> None:
    @nvtx.annotate("my_function", color="blue")
    def my_function(x: int) -> int:
        """Documented."""
        return x + 1

    @nvtx.annotate()
    def unnamed() -> None: ...

    assert my_function(1) == 2 and my_function.__doc__ == "Documented."
    unnamed()
    with nvtx.annotate("block"):
        pass
    assert calls == [("push", "my_function"), "pop", ("push", "unnamed"), "pop", ("push", "block"), "pop"]


def test_a_range_ends_when_the_function_raises(calls: list[Any]) -> None:
    @nvtx.annotate("fails")
    def fails() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fails()
    assert calls == [("push", "fails"), "pop"]


def test_one_annotation_may_be_nested_in_itself(calls: list[Any]) -> None:
    twice = nvtx.annotate("twice")
    with twice, twice:
        pass
    assert calls == [("push", "twice")] * 2 + ["pop"] * 2


def test_an_async_function_has_a_range_outside_of_the_stack(calls: list[Any]) -> None:
    @nvtx.annotate("fetch")
    async def fetch() -> int:
        await asyncio.sleep(0)
        return 5

    assert asyncio.run(fetch()) == 5
    assert calls == [("start", "fetch"), ("end", 7)]


def test_a_generator_function_is_refused() -> None:
    def batches() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="batches is a generator function"):
        nvtx.annotate()(batches)


def test_without_library_and_gpu_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU build of torch has the functions, and they raise."""
    import torch

    monkeypatch.setattr(nvtx, "_library", lambda: None)
    monkeypatch.setattr(torch.version, "cuda", None)
    with nvtx.range("x", color="red", domain="d"):
        nvtx.mark("y")
    assert nvtx.annotate("z")(lambda: 3)() == 3


PROGRAM = """
import asyncio, sys, warnings
import profiling_lab
from profiling_lab.utils import nvtx

@nvtx.annotate("my_function", color="red", domain="mine")
def my_function(): return 1

@nvtx.annotate("odd", color="no such colour")
def odd(): return 2

@nvtx.annotate("late")
async def late(): return 3

with profiling_lab.record(sys.argv[1], gpu=False), warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    assert [my_function(), odd(), odd(), asyncio.run(late())] == [1, 2, 2, 3]
    nvtx.mark("point")
(warning,) = told
assert "the range has the default colour" in str(warning.message)
"""


def test_a_recording_has_name_colour_and_domain(tmp_path: Path) -> None:
    pytest.importorskip("nvtx", reason="needs NVIDIA's library nvtx")
    path = tmp_path / "run.sqlite"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        env={"PYTHONPATH": str(PACKAGE_ROOT)},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(path) as file:
        strings = dict(file.execute("SELECT id, value FROM StringIds"))
        rows = file.execute("SELECT text, textId, color, eventType, domainId FROM NVTX_EVENTS ORDER BY start")
        events = [(text or strings[number], color, kind, domain) for text, number, color, kind, domain in rows
                  if kind != 75]  # fmt: skip
        named = file.execute("SELECT domainId FROM NVTX_EVENTS WHERE eventType = 75 AND text = 'mine'")
        (mine,) = named.fetchone()
    assert [event[0] for event in events] == ["my_function", "odd", "odd", "late", "point"]
    assert events[0][1:] == (0xFF0000, 59, mine)
    assert events[1][3] != mine
    assert events[3][2] == 60, "start and end, not push and pop"
