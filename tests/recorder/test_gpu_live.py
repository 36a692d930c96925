# SPDX-License-Identifier: Apache-2.0
"""Late windows on a real GPU: in a process that has its CUDA context, its graphs and its captures already."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorder.live_job import LiveJob

from profiling_lab.analysis.lines import lines
from profiling_lab.trace import Trace

pytestmark = pytest.mark.gpu

SCRIPT = """
import sys, threading, time, torch
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(64, 256, device="cuda")
def step():
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
def steps(count):
    for _ in range(count): step()
    torch.cuda.synchronize()
steps(3)
y = torch.randn(256, 256, device="cuda")
stream = torch.cuda.Stream()
with torch.cuda.stream(stream): (y @ y).sin()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph): z = (y @ y).sin().cos()
for _ in range(3): graph.replay()
torch.cuda.synchronize()
def graphs(count):
    for _ in range(count): graph.replay(); step()
    torch.cuda.synchronize()
def until_recorded():
    while not recorded(): step()
def recorded():
    from profiling_lab import _recorder
    return _recorder.recording()
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
print("the end")
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LiveJob]:
    started = LiveJob(tmp_path, None, SCRIPT)
    yield started
    started.close()


def count(path: Path, table: str) -> int:
    with sqlite3.connect(path) as file:
        found: int = file.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return found


def test_a_late_window_of_whole_steps_has_its_lines(job: LiveJob, tmp_path: Path) -> None:
    window = job.attach("--steps", "5", "-o", "run.sqlite")
    job.do("steps(12)")
    code, said = job.finish(window)
    assert code == 0 and "nothing dropped" in said, said
    with Trace.open(tmp_path / "run.sqlite") as trace:
        rows = [row for row in lines(trace, own=("train.py",)).rows if row.file.endswith("train.py")]
    assert sum(row.forward_ns for row in rows) > 0 and sum(row.backward_ns for row in rows) > 0
    assert count(tmp_path / "run.sqlite", "PYREC_WINDOW") == 1
    assert job.end()[0] == 0


def test_graphs_older_than_the_attach_are_replayed_in_two_windows_and_between(
    job: LiveJob, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        window = job.attach("--steps", "3", "-o", f"{name}.sqlite")
        job.do("graphs(8)")
        code, said = job.finish(window)
        assert code == 0, said
        with sqlite3.connect(tmp_path / f"{name}.sqlite") as file:
            nodes = file.execute(
                "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE graphNodeId IS NOT NULL"
            ).fetchone()
        assert nodes[0] >= 9, "three replays of three kernels"
        job.do("graphs(3)")
        job.do("g2 = torch.cuda.CUDAGraph(); c = torch.cuda.graph(g2); c.__enter__(); w = (y @ y).exp(); "
               "c.__exit__(None, None, None); g2.replay(); torch.cuda.synchronize()")  # fmt: skip
    assert job.end()[0] == 0


def test_an_attach_in_the_middle_of_a_capture(job: LiveJob, tmp_path: Path) -> None:
    """Waiting for the device would break it: the program would see an error."""
    job.do("g3 = torch.cuda.CUDAGraph(); c = torch.cuda.graph(g3); c.__enter__(); w = (y @ y).exp()")
    window = job.attach("--seconds", "1", "-o", "run.sqlite")
    job.do("w2 = w.sin(); c.__exit__(None, None, None); g3.replay(); torch.cuda.synchronize()")
    job.do("steps(3)")
    code, said = job.finish(window)
    assert code in (0, 3), said
    assert job.end()[0] == 0


def test_an_attach_while_threads_launch(job: LiveJob, tmp_path: Path) -> None:
    job.do("stop = False")
    job.do("work = lambda: [(y @ y).sin() for _ in iter(lambda: stop, True)]")
    job.do("threads = [threading.Thread(target=work) for _ in range(4)]; [t.start() for t in threads]")
    for number in range(5):
        code, said = job.finish(job.attach("--seconds", "0.3", "-o", f"{number}.sqlite"))
        assert code == 0, said
        assert count(tmp_path / f"{number}.sqlite", "CUPTI_ACTIVITY_KIND_KERNEL") > 10
    job.do("stop = True; [t.join() for t in threads]; torch.cuda.synchronize()")
    assert job.end()[0] == 0
