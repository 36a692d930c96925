# SPDX-License-Identifier: Apache-2.0
"""Windows of a recording on a real GPU: whole steps, nothing lost at their edges, graphs survive pauses."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.gpu

PROGRAM = """
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(256, 512, device="cuda")
def step():
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
def steps(count):
    for _ in range(count): step()
steps(3); torch.cuda.synchronize()
"""
LAUNCHED_IN_THE_FILE = (
    "SELECT count(*), sum(correlationId IN (SELECT correlationId FROM PYREC_LAUNCH))"
    " FROM CUPTI_ACTIVITY_KIND_KERNEL"
)


def test_windows_hold_whole_steps(run_gpu: Any, query: Any) -> None:
    run_gpu(f"""
{PROGRAM}
with profiling_lab.record(OUT) as recorder: steps(4)
per_step = recorder.summary.kernels / 4
schedule = profiling_lab.Schedule(wait=1, warmup=1, active=2, every=5)
with profiling_lab.record(OUT, overwrite=True, schedule=schedule) as recorder: steps(15)
from profiling_lab.trace import Trace
with Trace.open(OUT) as trace: kept = int((trace.operations.kind == 0).sum())
assert per_step == int(per_step) and kept == 3 * 2 * per_step, (per_step, kept)
assert recorder.summary.dropped == 0 and recorder.summary.reasons == {{}}, recorder.summary
""")
    ((kernels, launched),) = query(LAUNCHED_IN_THE_FILE)
    assert kernels == launched, "every kernel has its launch, and its line"
    assert query("SELECT firstStep FROM PYREC_WINDOW ORDER BY start") == [(2,), (7,), (12,)]


def test_a_graph_recorded_as_a_whole_is_recorded_by_kernel_after_a_pause(run_gpu: Any, query: Any) -> None:
    run_gpu("""
with profiling_lab.record(OUT) as recorder:
    a = torch.randn(256, 256, device="cuda"); (a @ a).sin(); torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): b = (a @ a).sin()
    for _ in range(2): graph.replay()
    for _ in range(3):
        recorder.pause()
        for _ in range(5): graph.replay()
        recorder.resume()
        for _ in range(3): graph.replay()
    torch.cuda.synchronize()
assert torch.equal(b, (a @ a).sin())
""")
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE") == [(2,)]
    replays = (
        "SELECT count(DISTINCT correlationId), count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE graphNodeId"
    )
    ((replayed, kernels),) = query(replays)
    assert (replayed, kernels) in ((9, 18), (9, 27)), "each with its product and its sine"


def test_graphs_made_in_a_pause_replay_in_a_window(run_gpu: Any, query: Any) -> None:
    run_gpu("""
with profiling_lab.record(OUT) as recorder:  # before the first use of the GPU: graphs are recorded as a whole
    recorder.pause()
    a = torch.randn(256, 256, device="cuda"); (a @ a).sin(); torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): b = (a @ a).sin()
    for _ in range(5): graph.replay()
    recorder.resume()
    for _ in range(3): graph.replay()
    recorder.pause()
    for _ in range(5): graph.replay()
    torch.cuda.synchronize()
assert torch.equal(b, (a @ a).sin())
""")
    replays = [
        correlation
        for table in ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUPTI_ACTIVITY_KIND_KERNEL")
        if query(f"SELECT 1 FROM sqlite_master WHERE name = '{table}'")
        for (correlation,) in query(f"SELECT DISTINCT correlationId FROM {table}")
    ]
    assert len(replays) == 3


def test_a_step_outside_of_a_window_costs_what_it_costs_without_a_recorder(run_gpu: Any) -> None:
    """Gross failures only: the figures are those of benchmarks/recorder/recorder_overhead.py."""
    done = run_gpu(f"""
{PROGRAM}
def quickest():  # the rest is what other programs took
    times = []
    for _ in range(5):
        begin = time.perf_counter(); steps(10); torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / 10)
    return min(times)
quickest()
plain, paused = [], []
for _ in range(7):
    plain.append(quickest())
    with profiling_lab.record(OUT, overwrite=True) as recorder:
        recorder.pause()
        paused.append(quickest())
print(min(paused) / min(plain))
""")
    ratio = float(done.stdout)
    print(f"a step in a pause costs {ratio:.3f} of the step without a recorder")
    assert ratio < 1.25, "far above what quickest steps differ by"
