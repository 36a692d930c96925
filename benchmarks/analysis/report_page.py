# SPDX-License-Identifier: Apache-2.0
"""How large a report page is, how long it takes to make, and how fluid its timeline stays.

    python benchmarks/analysis/report_page.py -o benchmarks/results/report_page.jsonl

Traces are synthetic (synthetic_trace.py) and come with their truth; a page counts only if it says the
same. Frames are zoomed and panned over the whole recording in a headless browser that paints with the CPU:
`frame` is the time that a frame's script takes, `frame_interval` the time from one frame to the next.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from synthetic_trace import cached

from profiling_lab.measure import ResultsFile, interleaved, machine
from profiling_lab.report.html import Page, build_page
from profiling_lab.trace import Trace

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests"))

from browser import Browser, find_browser  # noqa: E402

BENCHMARK, OURS = "report_page", "profiling-lab"
FRAMES = """(async () => {
  const t = profilingLab.timeline, frame = () => new Promise((r) => requestAnimationFrame(r));
  const sorted = (values) => [...values].sort((a, b) => a - b);
  t.show(0, t.span);
  await frame();
  t.frameMs.length = 0;
  const intervals = [];
  let before = performance.now();
  const next = async (move) => {
    move();
    await frame();
    intervals.push(performance.now() - before);
    before = performance.now();
  };
  for (let i = 0; i < 60; i++) await next(() => t.zoom(0.85, t.span * 0.4));
  for (let i = 0; i < 60; i++) await next(() => t.zoom(1 / 0.85, t.span * 0.4));
  for (let i = 0; i < 60; i++) await next(() => t.pan(i % 2 ? 0.1 : -0.08));
  await frame();
  const [script, all] = [sorted(t.frameMs), sorted(intervals)];
  const at = (values, part) => values[Math.min(values.length - 1, Math.floor(values.length * part))];
  return {frame: at(script, 0.5), frame_p95: at(script, 0.95), frame_interval: at(all, 0.5),
          frame_interval_p95: at(all, 0.95), ready: profilingLab.readyMs,
          gpu_ns: profilingLab.flame.root.ns, rows: profilingLab.data.lines.total_matched};
})()"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", "-o", type=Path, help="append JSON lines here")
    parser.add_argument("--events", nargs="+", type=int, default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--dir", type=Path, help="where the generated files stay (default: a temporary one)")
    args = parser.parse_args()
    browser = find_browser()
    if browser is None:
        raise SystemExit("no Chromium or Chrome is on the PATH")
    results = ResultsFile(args.output, replace(machine("cpu"), gpu=None))
    with tempfile.TemporaryDirectory(dir=args.dir) as scratch:
        for events in args.events:
            measure(results, events, args.dir or Path(scratch), Path(scratch) / "page.html", browser)
    return 0


def measure(results: ResultsFile, events: int, folder: Path, output: Path, browser: str) -> None:
    path, truth = cached(folder, events, "recorder")
    made: list[Page] = []

    def build() -> None:
        with Trace.open(path) as trace:
            made[:] = [build_page(trace)]

    (timing,) = interleaved(
        {"build": build}, steps_per_block=1, warmup=0, blocks=1 if events > 2_000_000 else 3, device="cpu"
    ).values()
    (page,) = made
    output.write_bytes(page.html)
    with Browser(browser) as shown:
        shown.open(output)
        seen: dict[str, Any] = shown.run(FRAMES)
    gpu_ns = sum(forward + backward for forward, backward, _ in truth.lines.values())
    if (seen["gpu_ns"], seen["rows"]) != (gpu_ns, len(truth.lines)):
        raise SystemExit(f"the page of {path} says {seen}, not {gpu_ns} ns in {len(truth.lines)} lines")
    case = {"events": truth.events, "shown": page.events}
    results.add(BENCHMARK, case, OURS, "page", len(page.html), "bytes")
    results.add(BENCHMARK, case, OURS, "one_by_one", page.kept, "events")
    results.add(BENCHMARK, case, OURS, "build", timing.median_ns / 1e9, "s")
    results.add(BENCHMARK, case, OURS, "build_samples", timing.n, "samples")
    for metric in ("ready", "frame", "frame_p95", "frame_interval", "frame_interval_p95"):
        results.add(BENCHMARK, case, OURS, metric, seen[metric], "ms")
    told = ", ".join(f"{line['metric']} {line['value']:,.6g} {line['unit']}" for line in results.lines[-9:])
    print(f"{truth.events:,} events: {told}")


if __name__ == "__main__":
    sys.exit(main())
