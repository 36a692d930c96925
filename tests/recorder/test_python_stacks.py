# SPDX-License-Identifier: Apache-2.0
"""Stacks taken without the GIL equal what Python itself says, whatever the program is doing."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from profiling_lab import _recorder

stacks = _recorder.python_stacks


def load_shapes() -> ModuleType:
    spec = spec_from_file_location("python_stack_shapes", Path(__file__).with_name("python_stack_shapes.py"))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


shapes = load_shapes()


@pytest.fixture(autouse=True)
def started() -> Iterator[None]:
    stacks.start()
    yield
    stacks.stop()


@pytest.fixture
def checker() -> Any:
    return shapes.Checker(stacks)


@pytest.mark.parametrize("shape", shapes.SHAPES, ids=lambda shape: shape.__name__)
def test_stack_equals_getframe(shape: Callable[[Any], None], checker: Any) -> None:
    for _ in range(3):  # the second and third time come from what the first left behind
        shape(checker)
        stacks.resolve()
    assert checker.checked >= 3
    assert checker.differences == []


def test_line_tables_decode_as_python_decodes_them(checker: Any) -> None:
    assert shapes.line_tables(checker) == []


@pytest.mark.parametrize("where", ["main thread", "worker while the main thread waits"])
def test_address_of_a_dead_code_object_comes_again(where: str, checker: Any) -> None:
    if where == "main thread":
        shapes.reused_addresses(checker)
    else:
        again = shapes.in_waiting_worker(lambda: shapes.reused_addresses(checker))
        assert again > 1000, "the test must meet the case it is about"
    assert checker.differences == []


def test_equal_code_compiled_again_adds_nothing(checker: Any) -> None:
    def once() -> None:
        exec(compile("def made():\n  return c.check()\nmade()\n", "<again>", "exec"), {"c": checker})

    def a_hundred_times() -> int:
        for _ in range(100):
            once()
        return stacks.node_count()

    first = a_hundred_times()
    assert first == stacks.node_count()
    counts = {a_hundred_times() for _ in range(3)}
    assert len(counts) <= 2 and max(counts) - first < 10
    assert checker.differences == []


def test_other_threads_look_collect_and_monitor_meanwhile(checker: Any) -> None:
    assert shapes.disturbed(checker, enough=1000) >= 1000
    assert checker.differences == []


def test_many_threads_at_once() -> None:
    checkers = [shapes.Checker(stacks) for _ in range(4)]

    def run(own: Any) -> None:
        for _ in range(20):
            for shape in shapes.SHAPES:
                if shape is not shapes.truncated_recursion:  # counts process-wide
                    shape(own)

    threads = [threading.Thread(target=run, args=(own,)) for own in checkers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [own.differences for own in checkers] == [[]] * 4


def test_never_waits_for_the_gil() -> None:
    results: list[tuple[int, float]] = []
    worker = threading.Thread(target=lambda: results.append(stacks.captures_for(0.6)))
    worker.start()
    time.sleep(0.1)  # it runs without the GIL by now
    ctypes.PyDLL(None).usleep(1_000_000)  # PyDLL keeps the GIL
    worker.join()
    ((count, slowest_ns),) = results
    assert count > 1000
    assert slowest_ns < 300e6, "a capture waited for the thread that held the GIL"


def test_thread_that_python_never_saw_has_no_frames() -> None:
    assert stacks.capture_in_native_thread() == 0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_ended_threads_leave_nothing_behind() -> None:
    def batch(count: int) -> None:
        for _ in range(count):
            thread = threading.Thread(target=stacks.capture_here)
            thread.start()
            thread.join()
            stacks.capture_in_native_thread()

    batch(200)
    before = resident_bytes()
    batch(1500)  # 15 kB each would be 22 MB
    assert resident_bytes() - before < 8e6


def test_truncated_stack_keeps_its_innermost_frames() -> None:
    def nested(level: int) -> int:
        return stacks.capture_here() if level == 0 else nested(level - 1)

    frames = stacks.stack(nested(stacks.MAX_DEPTH + 50))
    assert len(frames) == stacks.MAX_DEPTH + 1
    assert frames[-1] == ("", "<truncated>", 0, 0)
    assert {name for _, name, _, _ in frames[:-1]} == {
        nested.__code__.co_qualname if sys.version_info >= (3, 11) else "nested"
    }


def test_off_means_no_stack_and_ids_stay_readable() -> None:
    before = stacks.capture_here()
    frames = stacks.stack(before)
    stacks.stop()
    assert stacks.capture_here() == 0
    assert stacks.stack(before) == frames
    for _ in range(100):
        stacks.start()
        stacks.start()
        assert stacks.capture_here() > 0
        stacks.stop()
    assert stacks.stack(before) == frames


def test_unknown_id() -> None:
    assert stacks.stack(0) == []
    with pytest.raises(IndexError, match="no stack has the id"):
        stacks.stack(2**31)


def test_launcher_frames_are_left_out() -> None:
    seen: list[list[Any]] = []

    def script() -> None:
        seen.append(stacks.stack(stacks.capture_here()))

    def launcher() -> None:
        stacks.hide_callers()
        script()

    thread = threading.Thread(target=launcher)  # what is hidden is hidden for one thread
    thread.start()
    thread.join()
    assert [name.rsplit(".", 1)[-1] for _, name, _, _ in seen[0]] == ["script"]
    assert len(stacks.stack(stacks.capture_here())) > 1


def test_forked_child_is_off_and_can_start_anew() -> None:
    stacks.capture_here()
    child = os.fork()
    if child == 0:
        stacks.after_fork_child()
        silent = stacks.capture_here() == 0
        stacks.start()
        frames = stacks.stack(stacks.capture_here())
        os._exit(0 if silent and frames and frames[0][1].endswith("anew") else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert stacks.capture_here() > 0


def test_cost_per_capture(checker: Any, record_property: Callable[[str, object], None]) -> None:
    for depth in (10, 30):
        nanoseconds = shapes.cost_ns(checker, depth)
        record_property(f"capture_ns_depth_{depth}", round(nanoseconds))
        print(f"{nanoseconds:.0f} ns per capture at depth {depth} and the test runner's own frames")
        assert nanoseconds < 50_000, (
            "a walk takes a few nanoseconds per frame, on a loaded machine ten times that"
        )
