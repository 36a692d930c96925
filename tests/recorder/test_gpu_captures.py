# SPDX-License-Identifier: Apache-2.0
"""Windows that begin and end while another thread captures a CUDA graph."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.gpu

CAPTURE = """
import threading
a = torch.randn(512, 512, device="cuda"); (a + 1) * 2; torch.cuda.synchronize()
graph, inside, go_on = torch.cuda.CUDAGraph(), threading.Event(), threading.Event()
def capture():  # nothing that a thread sets up at its first use, as cuBLAS does
    with torch.cuda.graph(graph):
        b = a + 1; inside.set(); assert go_on.wait(60); b = b * 2
thread = threading.Thread(target=capture)
"""


def test_windows_by_hand(run_gpu: Any, query: Any) -> None:
    run_gpu(
        CAPTURE
        + """
recorder = profiling_lab.recording.Recorder(OUT); recorder.start()
thread.start(); assert inside.wait(60)
recorder.pause(); recorder.resume()
go_on.set(); thread.join()
graph.replay(); torch.cuda.synchronize()
summary = recorder.stop()
assert "sync" not in summary.reasons, summary.reasons
"""
    )
    assert query("SELECT count(*) FROM PYREC_WINDOW") == [(2,)]


def test_windows_of_the_clock(run_gpu: Any, query: Any) -> None:
    run_gpu(
        """
from profiling_lab.recording import Schedule
from profiling_lab import _recorder
"""
        + CAPTURE
        + """
schedule = Schedule(delay_s=0.5, duration_s=0.5)
recorder = profiling_lab.recording.Recorder(OUT, schedule=schedule); recorder.start()
thread.start(); assert inside.wait(60)
time.sleep(1.5)
assert _recorder.captures_under_way() == 1
go_on.set(); thread.join()
assert _recorder.captures_under_way() == 0
graph.replay(); torch.cuda.synchronize()
summary = recorder.stop()
assert "sync" not in summary.reasons, summary.reasons
"""
    )
    assert query("SELECT count(*), min(end) > min(start) FROM PYREC_WINDOW") == [(1, 1)]


def test_what_the_default_stream_runs_is_kept(run_gpu: Any, query: Any) -> None:
    """The window ends while a second of work is queued there."""
    run_gpu(
        CAPTURE
        + """
recorder = profiling_lab.recording.Recorder(OUT); recorder.start()
thread.start(); assert inside.wait(60)
torch.cuda._sleep(1_000_000_000)
for _ in range(20): a.sin_()
recorder.pause()
go_on.set(); thread.join()
recorder.stop()
"""
    )
    sines = "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName"
    assert query(f"{sines} WHERE value LIKE '%sin%'") == [(20,)]
