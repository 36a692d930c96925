# SPDX-License-Identifier: Apache-2.0
"""Memory snapshots of torch: what is read, and that nothing in a pickle is executed."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from memory_model.fake_allocator import FakeAllocator, frame

from profiling_lab.errors import NotEnoughDataError, UnreadableInputError
from profiling_lab.trace import Trace
from profiling_lab.trace.memory_history import Action

FRAMES = [frame("linear", "/usr/lib/python3.11/site-packages/torch/nn/functional.py", 5),
          frame("forward", "/home/u/model.py", 30), frame("<module>", "/home/u/train.py", 9)]  # fmt: skip


def snapshot() -> dict[str, Any]:
    allocator = FakeAllocator()
    allocator.free(allocator.malloc(1000, FRAMES))
    allocator.malloc(3 << 20, [])
    return allocator.snapshot()


def write(folder: Path, value: Any, protocol: int = 4) -> Path:
    path = folder / "memory.pickle"
    path.write_bytes(pickle.dumps(value, protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_events_segments_and_stacks(tmp_path: Path, protocol: int) -> None:
    with Trace.open(write(tmp_path, snapshot(), protocol)) as trace:
        (history,) = trace.source.memory_history()
        made = [Action(number).name for number in history.action.tolist()]
        assert made == [
            "SEGMENT_ALLOC",
            "ALLOC",
            "FREE_REQUESTED",
            "FREE_COMPLETED",
            "SEGMENT_ALLOC",
            "ALLOC",
        ]
        assert history.size.tolist() == [2 << 20, 1000, 1000, 1000, 20 << 20, 3 << 20]
        stack = int(history.stack[1])
        assert [str(each) for each in trace.stacks.of(stack)] == [
            f"{each['filename']}:{each['line']} {each['name']}" for each in FRAMES
        ]
        assert history.stack[5] == 0
        assert history.time_ns[1] - history.time_ns[0] == 1000
        assert sorted(history.segments.size.tolist()) == [2 << 20, 20 << 20]
        assert history.blocks.requested.tolist() == [3 << 20]
        assert trace.recorder == "torch.cuda.memory" and trace.why_empty()


def test_gzip_and_the_form_before_torch_2_are_read(tmp_path: Path) -> None:
    path = tmp_path / "memory.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(snapshot()["segments"])))
    with Trace.open(path) as trace:
        (history,) = trace.source.memory_history()
        assert len(history) == 0 and history.segments.size.sum() == 22 << 20


class Executes:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {"segments": [], "device_traces": [[Executes(tmp_path / "mark")]]})
    with pytest.raises(UnreadableInputError, match=r"pickle with posix\.mkdir in it; .* could run code"):
        Trace.open(path)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("value", "said"),
    [({"a": 1}, "not a memory snapshot: expected a dict with segments and device_traces"),
     ([1, 2], "its layout is not that"), ({"segments": [{"address": "x"}]}, "its layout is not that"),
     ({"device_traces": [[{"action": "alloc"}]]}, "its layout is not that"), (7, "not a memory snapshot")],
)  # fmt: skip
def test_other_pickles_are_refused(tmp_path: Path, value: Any, said: str) -> None:
    with pytest.raises(UnreadableInputError, match=said) as refused:
        Trace.open(write(tmp_path, value))
    assert str(refused.value).count(str(tmp_path)) == 1


def test_every_cut_is_refused_or_read(tmp_path: Path) -> None:
    whole = pickle.dumps(snapshot())
    path = tmp_path / "memory.pickle"
    for size in range(3, len(whole) - 1, 7):
        path.write_bytes(whole[:size])
        with pytest.raises(UnreadableInputError):
            Trace.open(path)


def test_damage_never_ends_in_another_error(tmp_path: Path) -> None:
    whole = bytearray(pickle.dumps(snapshot()))
    path = tmp_path / "memory.pickle"
    for at in range(2, len(whole), 3):
        damaged = bytearray(whole)
        damaged[at] ^= 0x41
        path.write_bytes(damaged)
        try:
            Trace.open(path).close()
        except UnreadableInputError as error:
            assert str(path) in str(error)


def test_tables_of_gpu_work_say_what_the_file_is(tmp_path: Path) -> None:
    with (
        Trace.open(write(tmp_path, snapshot())) as trace,
        pytest.raises(NotEnoughDataError, match="memory reads"),
    ):
        _ = trace.attribution
