# SPDX-License-Identifier: Apache-2.0
"""The recorder on a real GPU, against torch.profiler and against programs whose launches are known.

python -m pytest --require-gpu -rA tests/recorder/test_gpu_recording.py
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

# A small seeded training step with attention, normalisation and an optimizer. `warm` is what must not be part
# of the comparison: the first step loads modules and chooses algorithms.
PROGRAM = """
torch.manual_seed(0)
model = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True).cuda()
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(8, 16, 64, device="cuda")
def step():
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
step(); step(); torch.cuda.synchronize()
"""
SHAPE = "gridX, gridY, gridZ, blockX, blockY, blockZ"


def test_kernels_equal_torch_profilers(run_gpu: Any, query: Any, tmp_path: Path) -> None:
    run_gpu(f"""
{PROGRAM}
from torch.profiler import profile, ProfilerActivity
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
    step(); step(); step(); torch.cuda.synchronize()
prof.export_chrome_trace("kineto.json")
""")
    run_gpu(f"""
{PROGRAM}
with profiling_lab.record(OUT) as recorder:
    step(); step(); step(); torch.cuda.synchronize()
assert recorder.summary.reasons == {{}} and recorder.summary.dropped == 0, recorder.summary
""")
    events = json.loads((tmp_path / "kineto.json").read_text())["traceEvents"]
    theirs = [e for e in events if e.get("cat") == "kernel"]
    ours = query(
        f"SELECT s.value, {SHAPE}, end - start FROM CUPTI_ACTIVITY_KIND_KERNEL "
        "JOIN StringIds s ON s.id = demangledName"
    )
    assert Counter((row[0], row[1:4], row[4:7]) for row in ours) == Counter(
        (e["name"], tuple(e["args"]["grid"]), tuple(e["args"]["block"])) for e in theirs
    )
    ours_us, theirs_us = sum(row[7] for row in ours) / 1000, sum(e["dur"] for e in theirs)
    assert ours_us == pytest.approx(theirs_us, rel=0.15)
    memory = Counter(e["cat"] for e in events if e.get("cat") in ("gpu_memcpy", "gpu_memset"))
    for table, category in {"MEMCPY": "gpu_memcpy", "MEMSET": "gpu_memset"}.items():
        tables = query("SELECT count(*) FROM sqlite_master WHERE name = ?", f"CUPTI_ACTIVITY_KIND_{table}")
        count = query(f"SELECT count(*) FROM CUPTI_ACTIVITY_KIND_{table}")[0][0] if tables[0][0] else 0
        assert count == memory[category]


def test_every_kernel_belongs_to_the_call_that_launched_it(run_gpu: Any, query: Any) -> None:
    """The callback's correlation id is the kernel record's, without CUPTI's RUNTIME kind."""
    run_gpu(f"""
{PROGRAM}
with profiling_lab.record(OUT):
    for _ in range(5): step()
""")
    kernels, with_call, in_order, with_launch = query(
        "SELECT count(*), count(r.start), sum(r.start <= k.start), count(l.correlationId) "
        "FROM CUPTI_ACTIVITY_KIND_KERNEL k LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME r "
        "ON r.correlationId = k.correlationId LEFT JOIN PYREC_LAUNCH l ON l.correlationId = k.correlationId"
    )[0]
    assert kernels > 100 and (with_call, in_order, with_launch) == (kernels, kernels, kernels)
    # A kernel waits for its launch by milliseconds at most here; another clock would be off by far more.
    delays = query(
        "SELECT min(k.start - r.start), max(k.start - r.end) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r USING (correlationId)"
    )[0]
    assert delays[0] > 0 and delays[1] < 1_000_000_000
    names = dict(query(
        "SELECT value, count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId GROUP BY 1"
    ))  # fmt: skip
    print("calls:", names)
    assert names["cudaLaunchKernel_v7000"] > 0


def test_lines_and_threads_of_forward_and_backward(run_gpu: Any, query: Any, launch_lines: Any) -> None:
    run_gpu("""
a = torch.randn(256, 256, device="cuda", requires_grad=True)
(a @ a).sum().backward(); torch.cuda.synchronize()
def forward():
    b = a @ a
    return b.sin()
with profiling_lab.record(OUT):
    loss = forward().sum()
    loss.backward()
""")
    lines = {(line, function) for _, line, function in launch_lines()}
    assert {(4, "forward"), (5, "forward"), (7, "<module>")} <= lines
    backward = query(
        "SELECT DISTINCT s.value, l.nodeSeq >= 0, l.nodeFwdThread, l.globalTid FROM PYREC_LAUNCH l "
        "JOIN StringIds s ON s.id = l.nodeNameId"
    )
    assert {"MmBackward0", "SinBackward0"} <= {name for name, *_ in backward}
    main = query(
        "SELECT DISTINCT globalTid, selfThread FROM PYREC_LAUNCH WHERE nodeSeq IS NULL AND stackId > 0"
    )
    assert len(main) == 1
    engine = [row for row in backward if row[0] == "MmBackward0"]
    assert all(has_number and thread == main[0][1] for _, has_number, thread, _ in engine)
    assert all(tid != main[0][0] for *_, tid in engine), "CUDA backward runs on the engine's own thread"


def test_copies_sets_and_waits(run_gpu: Any, query: Any) -> None:
    run_gpu("""
host = torch.arange(1 << 20, dtype=torch.float32); pinned = host.pin_memory()
a = torch.empty(1 << 20, device="cuda"); b = torch.empty_like(a); torch.cuda.synchronize()
with profiling_lab.record(OUT) as recorder:
    a.copy_(host)
    a.copy_(pinned, non_blocking=True)
    b.copy_(a)
    c = b.cpu()
    b.zero_()
    torch.cuda.current_stream().synchronize()
    event = torch.cuda.Event(); event.record(); event.synchronize()
    torch.cuda.synchronize()
assert torch.equal(c, host)
""")
    copies = query(
        "SELECT copyKind, srcKind, dstKind, bytes, end > start FROM CUPTI_ACTIVITY_KIND_MEMCPY ORDER BY start"
    )
    nbytes = 4 << 20
    assert copies == [(1, 0, 2, nbytes, 1), (1, 1, 2, nbytes, 1), (8, 2, 2, nbytes, 1), (2, 2, 0, nbytes, 1)]
    syncs = {kind for (kind,) in query("SELECT DISTINCT syncType FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION")}
    print("kinds of waits:", syncs)
    assert {3, 4} <= syncs
    calls = {name for (name,) in query("SELECT DISTINCT value FROM StringIds WHERE value LIKE 'cuda%'")}
    assert {"cudaMemcpyAsync_v3020", "cudaStreamSynchronize_v3020", "cudaDeviceSynchronize_v3020"} <= calls


def test_a_set_has_its_value_and_bytes(run_gpu: Any, query: Any) -> None:
    run_gpu("""
import ctypes, re
a = torch.empty(1 << 16, dtype=torch.uint8, device="cuda"); torch.cuda.synchronize()
path = re.search(r"/\\S*libcudart\\S*", open("/proc/self/maps").read()).group()
with profiling_lab.record(OUT):
    assert ctypes.CDLL(path).cudaMemset(ctypes.c_void_p(a.data_ptr()), 7, ctypes.c_size_t(1 << 16)) == 0
assert int(a.max()) == int(a.min()) == 7
""")
    assert query("SELECT value, bytes, memKind FROM CUPTI_ACTIVITY_KIND_MEMSET") == [(7, 1 << 16, 2)]
    called = query(
        "SELECT s.value FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON s.id = nameId "
        "JOIN CUPTI_ACTIVITY_KIND_MEMSET USING (correlationId)"
    )
    assert called == [("cudaMemset_v3020",)]


def test_two_streams(run_gpu: Any, query: Any) -> None:
    run_gpu("""
a, b = (torch.randn(512, 512, device="cuda") for _ in range(2))
side = torch.cuda.Stream(); a @ a; torch.cuda.synchronize()
with profiling_lab.record(OUT):
    a.sin()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side): b.cos()
""")
    rows = query(
        "SELECT value, streamId FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName"
    )
    sin, cos = ({stream for name, stream in rows if which in name} for which in ("sin", "cos"))
    assert len(sin) == len(cos) == 1 and sin != cos
    known = {stream for (stream,) in query("SELECT streamId FROM TARGET_INFO_CUDA_STREAM")}
    assert sin | cos <= known
    waits = query(
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds s ON s.id = nameId "
        "WHERE value LIKE 'cudaStreamWaitEvent%'"
    )
    assert waits == [(1,)]


def test_graph_replays_have_the_line_that_replays(run_gpu: Any, query: Any, launch_lines: Any) -> None:
    run_gpu("""
a = torch.randn(256, 256, device="cuda"); graph = torch.cuda.CUDAGraph()
side = torch.cuda.Stream()
with torch.cuda.stream(side): (a @ a).sin()
torch.cuda.synchronize()
with torch.cuda.graph(graph): b = (a @ a).sin()
with profiling_lab.record(OUT):
    for _ in range(3):
        graph.replay()
""")
    # A graph that was made before the recording is told kernel by kernel, a later one as a whole.
    tables = [
        name
        for (name,) in query("SELECT name FROM sqlite_master WHERE name LIKE 'CUPTI_ACTIVITY_KIND_%'")
        if name.endswith(("GRAPH_TRACE", "KERNEL"))
    ]
    replays = {c for table in tables for (c,) in query(f"SELECT correlationId FROM {table}")}
    by_correlation = {correlation: line for correlation, line, _ in launch_lines()}
    print("replays are rows of", tables)
    assert len(replays) == 3 and {by_correlation[c] for c in replays} == {8}


def test_graph_made_in_one_recording_replays_in_the_next(run_gpu: Any) -> None:
    run_gpu("""
graph = torch.cuda.CUDAGraph()
with profiling_lab.record(OUT, overwrite=True):  # from before the first use of the GPU: graphs as a whole
    a = torch.randn(256, 256, device="cuda"); (a @ a).sin(); torch.cuda.synchronize()
    with torch.cuda.graph(graph): b = (a @ a).sin()
    graph.replay(); torch.cuda.synchronize()
for _ in range(2):
    with profiling_lab.record(OUT, overwrite=True) as recorder:
        graph.replay(); torch.cuda.synchronize()
    assert recorder.summary.kernels >= 2, recorder.summary
""")


def test_graph_captured_in_a_process_that_used_the_gpu_before(run_gpu: Any, query: Any) -> None:
    run_gpu("""
a = torch.randn(256, 256, device="cuda"); (a @ a).sin(); torch.cuda.synchronize()
with profiling_lab.record(OUT):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): b = (a @ a).sin()
    for _ in range(3): graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(b, (a @ a).sin())
""")
    ((kernels, nodes, replays),) = query(
        "SELECT count(*), count(DISTINCT graphNodeId), count(DISTINCT correlationId) "
        "FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE graphNodeId IS NOT NULL"
    )
    assert nodes >= 2 and replays == 3 and kernels == nodes * replays, "node by node"


def test_graph_of_a_process_recorded_from_its_start(run_gpu: Any, query: Any) -> None:
    run_gpu("""
with profiling_lab.record(OUT):
    a = torch.randn(256, 256, device="cuda"); (a @ a).sin(); torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): b = (a @ a).sin()
    for _ in range(3): graph.replay()
    torch.cuda.synchronize()
""")
    assert query("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE") == [(3,)], "each as a whole"


def test_nvtx_ranges_contain_their_launches(run_gpu: Any, query: Any) -> None:
    run_gpu("""
a = torch.randn(64, 64, device="cuda"); torch.cuda.synchronize()
with profiling_lab.record(OUT) as recorder:
    with torch.cuda.nvtx.range("outer"):
        with torch.cuda.nvtx.range("inner"): a.sin()
        a.cos()
    whole = torch.cuda.nvtx.range_start("whole"); torch.cuda.nvtx.range_end(whole)
    torch.cuda.nvtx.mark("here")
assert recorder.summary.ranges >= 4
""")
    inside = dict(query(
        "SELECT n.text, count(*) FROM NVTX_EVENTS n "
        "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.globalTid = n.globalTid "
        "AND r.start >= n.start AND r.end <= n.end JOIN CUPTI_ACTIVITY_KIND_KERNEL k USING (correlationId) "
        "WHERE n.eventType = 59 GROUP BY n.text"
    ))  # fmt: skip
    assert inside == {"outer": 2, "inner": 1}
    assert query("SELECT text FROM NVTX_EVENTS WHERE eventType = 60") == [("whole",)]
    assert query("SELECT text FROM NVTX_EVENTS WHERE eventType = 34 AND text IS NOT NULL") == [("here",)]


def test_recording_again_and_torch_profiler_afterwards(run_gpu: Any) -> None:
    done = run_gpu(f"""
{PROGRAM}
counts = []
for _ in range(3):
    with profiling_lab.record(OUT, overwrite=True) as recorder: step()
    counts.append(recorder.summary.kernels)
assert counts[0] > 20 and len(set(counts)) == 1, counts
from torch.profiler import profile, ProfilerActivity
with profile(activities=[ProfilerActivity.CUDA]) as prof: step(); torch.cuda.synchronize()
kernels = sum(e.count for e in prof.key_averages())
assert kernels >= counts[0], (kernels, counts)
from profiling_lab.errors import LabError
try:
    with profiling_lab.record(OUT, overwrite=True) as recorder: step()
    print("recorded again", recorder.summary.kernels == counts[0])
except LabError as error:
    print("refused:", error)
step(); torch.cuda.synchronize()
""")
    # Since torch 2.11 or so its profiler keeps CUPTI; where it lets go, recording again must be complete.
    assert "recorded again True" in done.stdout or "torch.profiler, which keeps it" in done.stdout, (
        done.stdout
    )


def test_torch_profiler_inside_a_recording_is_noticed_or_harmless(run_gpu: Any, query: Any) -> None:
    """Whoever registers last gets the records; the file must not pretend to be whole."""
    run_gpu(f"""
{PROGRAM}
with profiling_lab.record(OUT, flush_period_ms=200) as recorder:
    step(); torch.cuda.synchronize(); time.sleep(0.5)
    from torch.profiler import profile, ProfilerActivity
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as prof: step(); torch.cuda.synchronize()
    except RuntimeError: pass
    end = time.time() + 8
    while time.time() < end: step(); torch.cuda.synchronize()
print(recorder.summary)
""", timeout=300)  # fmt: skip
    calls, kernels = query(
        "SELECT (SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds s ON s.id = nameId "
        "WHERE value LIKE '%LaunchKernel%'), (SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL)"
    )[0]
    told = query("SELECT count(*) FROM sqlite_master WHERE name = 'DIAGNOSTIC_EVENT'") != [(0,)]
    assert told or kernels >= 0.9 * calls, (calls, kernels)


def test_compiled_code_launches_through_the_driver(run_gpu: Any, query: Any) -> None:
    pytest.importorskip("triton")
    run_gpu("""
@torch.compile
def fused(x): return (x.sin() * x.cos()).relu() + 1
x = torch.randn(1 << 16, device="cuda"); fused(x); torch.cuda.synchronize()
with profiling_lab.record(OUT): fused(x)
""", timeout=400)  # fmt: skip
    rows = query(
        "SELECT value, stackId > 0 FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName "
        "JOIN PYREC_LAUNCH USING (correlationId)"
    )
    assert any(name.startswith("triton_") and has_stack for name, has_stack in rows), rows


def test_the_gpu_is_described(run_gpu: Any, query: Any, tmp_path: Path) -> None:
    run_gpu("""
with profiling_lab.record(OUT): torch.ones(1, device="cuda")
p = torch.cuda.get_device_properties(0)
facts = p.name, p.multi_processor_count, p.total_memory, p.major, p.minor, p.uuid
open("gpu.txt", "w").write("\\n".join(str(fact) for fact in facts))
""")
    row = query("SELECT name, smCount, totalMemory, computeMajor, computeMinor, uuid FROM TARGET_INFO_GPU")[0]
    assert [str(value) for value in row] == (tmp_path / "gpu.txt").read_text().split("\n")
    clock, bandwidth = query("SELECT clockRate, memoryBandwidth FROM TARGET_INFO_GPU")[0]
    print("clock", clock, "bandwidth", bandwidth)


def test_what_recording_costs(run_gpu: Any) -> None:
    """Printed; only a gross failure fails, the figures come from benchmarks/recorder/recorder_overhead.py.

    A process where CUPTI has been is never as fast again: the plain steps are those of processes without it.
    """
    timed = f"""
{PROGRAM}
def timed():
    torch.cuda.synchronize(); begin = time.perf_counter()
    for _ in range(20): step()
    torch.cuda.synchronize(); return time.perf_counter() - begin
def best(): return min(timed() for _ in range(8))
"""
    recording = """
with profiling_lab.record(OUT, overwrite=True) as recorder: seconds = best()
print(seconds, recorder.summary.launches / 160)
"""
    plain, recorded, calls = [], [], ""
    for _ in range(3):
        plain.append(float(run_gpu(timed + "print(best())").stdout))
        seconds, calls = run_gpu(timed + recording).stdout.split()
        recorded.append(float(seconds))
    ratio = statistics.median(recorded) / statistics.median(plain)
    print(f"{calls} calls in a step of {min(plain) / 20 * 1e6:.0f} us, recorded: {ratio:.3f} times that")
    assert ratio < 1.5, (plain, recorded)


def test_the_allocators_lock_and_the_gil_are_never_held_together(run_gpu: Any) -> None:
    """A launch under the allocator's lock must not wait for Python, whose holder may wait for that lock."""
    run_gpu("""
import threading
torch.cuda.memory._record_memory_history(max_entries=1000)
end = time.time() + 3
def work(size):
    while time.time() < end:
        kept = [torch.empty(size + 1000 * i, device="cuda").fill_(1) for i in range(20)]
        del kept
        torch.cuda.empty_cache()
def look():
    while time.time() < end: torch.cuda.memory._snapshot(); sum(range(10000))
with profiling_lab.record(OUT) as recorder:
    threads = [threading.Thread(target=work, args=(1 << n,)) for n in (10, 16, 20, 22)]
    threads.append(threading.Thread(target=look))
    for thread in threads: thread.start()
    for thread in threads: thread.join()
assert recorder.summary.kernels > 100 and recorder.summary.reasons == {}, recorder.summary
""", timeout=60)  # fmt: skip
