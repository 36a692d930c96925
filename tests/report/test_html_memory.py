# SPDX-License-Identifier: Apache-2.0
"""The lane of GPU memory in a report page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from browser import Browser, find_browser, fresh
from builders import TraceBuilder
from memory_model.recordings import MIB, MemoryRecording, training
from report.page_reader import PageReader

from profiling_lab.report import numbers
from profiling_lab.report.html import build_page
from profiling_lab.trace import Trace


def written(folder: Path) -> tuple[Path, MemoryRecording]:
    """A page, and the recording it is made of."""
    recording = MemoryRecording()
    training(recording, 6, keep=3 * MIB)
    path = folder / "memory.html"
    with Trace.open(recording.finish().write(folder / "run.sqlite")) as trace:
        path.write_bytes(build_page(trace).html)
    return path, recording


def test_the_lane_reaches_the_peak(tmp_path: Path) -> None:
    path, recording = written(tmp_path)
    lanes = PageReader(path.read_bytes()).lanes
    (lane,) = [lane for lane in lanes if lane.kind == "memory"]
    stream = next(lane for lane in lanes if lane.kind == "stream")
    peak = numbers.size(recording.allocator.peak)
    assert lane.group == stream.group and lane.label == f"memory, peak {peak}"
    assert int(lane.more["allocated"].max()) == recording.allocator.peak
    assert int(lane.more["reserved"].max()) == recording.allocator.reserved_peak
    highest = int(lane.more["allocated"].argmax())
    assert lane.names[highest] == f"{peak} allocated"
    assert np.all(np.diff(lane.start_ns) > 0)
    events = [event for event in recording.allocator.events if event["action"] == "alloc"]
    held, best, when = 0, 0, 0
    for event in recording.allocator.events:
        held += {"alloc": 1, "free_requested": -1}.get(event["action"], 0) * event["size"]
        if held > best:
            best, when = held, event["time_us"] * 1000
    assert events and lane.start_ns[highest] <= when < lane.start_ns[highest] + lane.duration_ns[highest]


def test_without_a_history_there_is_no_lane(tmp_path: Path) -> None:
    with Trace.open(TraceBuilder().launch("gemm", 100).write(tmp_path / "run.sqlite")) as trace:
        page = build_page(trace).html
    assert [lane.kind for lane in PageReader(page).lanes if lane.kind == "memory"] == []


@pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome is on the PATH")
@pytest.mark.usefixtures("quiet")
def test_a_browser_paints_it(browser: Browser, tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    fresh(browser, path)
    drawn = browser.run("""(async () => {
      const t = profilingLab.timeline, row = t.laneRows.find((r) => r.lane.kind === 'memory');
      const edge = t.canvas.getBoundingClientRect();
      t.show(0, t.span);
      await new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)));
      const i = row.lane.more.allocated.reduce((best, v, k, all) => (v > all[best] ? k : best), 0);
      const x = Math.round(t.view.x((row.lane.start[i] + row.lane.end[i]) / 2) * t.scale);
      const column = t.ctx.getImageData(x, 0, 1, t.canvas.height).data, top = row.y - t.box.scrollTop;
      const at = (y) => column.slice(4 * Math.round((top + y) * t.scale)).slice(0, 4).join();
      return {bottom: at(row.height - 4), above: at(-3), most: row.lane.most};
    })()""")
    assert drawn["bottom"] != drawn["above"] and drawn["most"] > 0
