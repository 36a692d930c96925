# SPDX-License-Identifier: Apache-2.0
"""Counting the work of one step: which step, that the program does not notice, and what the file says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorder.runner import Runner

from profiling_lab.analysis.coverage import file_notes
from profiling_lab.analysis.roofline.roofline import roofline
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import OverheadKind

pytest.importorskip("torch")

Query = Callable[..., list[tuple[Any, ...]]]

# A CPU model makes the launches of a CUDA model: operators on the CPU are counted, and the mode that launches
# for them is active around the steps, where a program of its own would have none.
PRELUDE = """
import torch
from profiling_lab.recording import work_step
work_step.DEVICE = None
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(64, 128)
        self.down = torch.nn.Linear(128, 64)
    def forward(self, x):
        hidden = torch.relu(self.up(x))  # line: up
        return self.down(hidden)  # line: down
torch.manual_seed(0)
net, x = Net(), torch.randn(32, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
"""
IN_THE_MODE = """
work_step._why_not = lambda: ""
with profiling_lab.record(OUT, work=True), launch_per_operator(fake, views=False):
    for _ in range(4):
        step()
"""


def test_the_second_step_is_counted_and_joined_with_its_lines(
    run_warm: Runner, query: Query, tmp_path: Path
) -> None:
    run_warm(PRELUDE + IN_THE_MODE)
    meta = dict(query("SELECT name, value FROM PYREC_META WHERE name LIKE 'work%'"))
    assert meta == {"work_dropped": "0", "work_failures": "0", "work_state": "on", "work_step": "1"}
    source = (tmp_path / "script.py").read_text().splitlines()
    up, down = (source.index(next(t for t in source if f"line: {n}" in t)) + 1 for n in ("up", "down"))
    with Trace.open(tmp_path / "out.sqlite") as trace:
        result = roofline(trace, None, own=("script.py",))
    flops = {(row.line, row.phase): row.flops for row in result.rows if row.flops is not None}
    product = 2 * 32 * 64 * 128
    # up needs no gradient of x: one product backward, down has two
    assert flops == {
        (up, "forward"): product,
        (down, "forward"): product,
        (up, "backward"): product,
        (down, "backward"): 2 * product,
    }
    assert result.step == "1" and not result.failures
    assert result.counted_ns == result.step_ns  # every launch of the step belongs to an operator


def test_what_counting_took_is_overhead_of_the_profiler(run_warm: Runner, tmp_path: Path) -> None:
    run_warm(PRELUDE + IN_THE_MODE)
    with Trace.open(tmp_path / "out.sqlite") as trace:
        overheads, work = trace.overheads, trace.work
        notes = file_notes(trace)
    assert work is not None
    mine = overheads.kind == OverheadKind.INSTRUMENTATION
    assert mine.sum() >= len(work) and set(overheads.thread[mine]) == set(work.thread)
    assert any("step 1 was counted for roofline" in note for note in notes)


def test_the_program_computes_the_same(run_warm: Runner) -> None:
    code = (
        PRELUDE
        + """
with profiling_lab.record(OUT, work=%s):
    for _ in range(4):
        step()
print([parameter.sum().item() for parameter in net.parameters()])
print(torch._C._len_torch_dispatch_stack())
"""
    )
    with_work, without = (
        run_warm(code % True).stdout,
        run_warm((code % False).replace("OUT", "OUT + '2'")).stdout,
    )
    assert with_work == without and with_work.endswith("\n0\n")


@pytest.mark.parametrize(
    ("options", "steps", "counted"),
    [
        ("work=True", 4, "1"),
        ("work_step=3", 5, "3"),
        ("work_step=0", 3, None),  # it began before the first step ended
        ("work=True, schedule=profiling_lab.Schedule.of_steps('2:4')", 6, "2"),
        ("work=True", 1, "1"),  # nothing ran in it, but it was entered
    ],
)
def test_which_step(run_warm: Runner, query: Query, options: str, steps: int, counted: str | None) -> None:
    run_warm(
        PRELUDE
        + f"""
with profiling_lab.record(OUT, {options}):
    for _ in range({steps}):
        step()
"""
    )
    meta = dict(query("SELECT name, value FROM PYREC_META WHERE name LIKE 'work%'"))
    assert meta.get("work_step") == counted


def test_steps_by_call(run_warm: Runner, query: Query) -> None:
    run_warm(
        PRELUDE
        + """
with profiling_lab.record(OUT, work=True):
    for _ in range(3):
        with torch.inference_mode():
            net(x)
        profiling_lab.step()
"""
    )
    ((calls,),) = query("SELECT COUNT(*) FROM PYREC_WORK WHERE flops > 0")
    assert calls == 2


def test_a_mode_of_the_program_is_left_alone(run_warm: Runner, query: Query) -> None:
    """It is active when the second step begins: the third one, which it does not span, is counted."""
    done = run_warm(
        PRELUDE
        + """
from torch.utils.flop_counter import FlopCounterMode
with profiling_lab.record(OUT, work=True):
    with FlopCounterMode(display=False) as flops:
        step()
    print(flops.get_total_flops())
    with FlopCounterMode(display=False) as flops:
        net(x)
    step()
    step()
    print(flops.get_total_flops(), torch._C._len_torch_dispatch_stack())
"""
    )
    product = 2 * 32 * 64 * 128
    assert done.stdout.split() == [str(5 * product), str(2 * product), "0"]
    assert query("SELECT value FROM PYREC_META WHERE name = 'work_step'") == [("2",)]


def test_a_mode_that_the_program_enters_in_the_counted_step_stays(run_warm: Runner) -> None:
    done = run_warm(
        PRELUDE
        + """
from torch.utils.flop_counter import FlopCounterMode
with profiling_lab.record(OUT, work=True):
    step()
    mode = FlopCounterMode(display=False)
    mode.__enter__()
    step()
    left = torch._C._len_torch_dispatch_stack()
    step()
    mode.__exit__(None, None, None)
    print(left, torch._C._len_torch_dispatch_stack(), mode.get_total_flops())
"""
    )
    assert done.stdout.split() == ["1", "0", str(10 * 2 * 32 * 64 * 128)]


def test_an_error_of_ours_is_counted_and_the_program_goes_on(run_warm: Runner, query: Query) -> None:
    done = run_warm(
        PRELUDE
        + """
import profiling_lab.work.counter as counter
def broken(*_):
    raise MemoryError
counter.work_of = broken
with profiling_lab.record(OUT, work=True):
    for _ in range(3):
        step()
print("done")
"""
    )
    assert done.stdout == "done\n"
    ((failures,),) = query("SELECT value FROM PYREC_META WHERE name = 'work_failures'")
    assert int(failures) > 5
    assert not query("SELECT name FROM sqlite_master WHERE name = 'PYREC_WORK'")


def test_a_killed_program_keeps_what_was_counted(run_warm: Runner, tmp_path: Path) -> None:
    from profiling_lab.recording.convert import convert

    run_warm(
        PRELUDE
        + """
recorder = profiling_lab.recording.Recorder(OUT, work=True)
recorder.start()
for _ in range(3):
    step()
time.sleep(0.5)
os.kill(os.getpid(), 9)
""",
        ok=False,
    )
    done = convert(tmp_path / "out.sqlite.spool", tmp_path / "recovered.sqlite")
    assert done.rows["PYREC_WORK"] > 5 and done.meta["work_step"] == "1"
