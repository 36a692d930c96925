# SPDX-License-Identifier: Apache-2.0
"""Take the documentation's pictures of reports.

    python tools/report_picture.py [timeline roofline memory]

timeline   the H200 recording that ships with the package, the slowest kernel of its first step selected
roofline   the demo with counted work
memory     a training step with its allocations

Needs a Chromium or Chrome.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests"))

from browser import Browser, find_browser  # noqa: E402

from profiling_lab.report.html import build_page  # noqa: E402
from profiling_lab.trace import Trace  # noqa: E402

WIDTH = 1280
SELECT = """
  const t = profilingLab.timeline, lane = t.lanes.find((l) => l.kind === 'stream');
  let slowest = 0;
  for (let i = 0; i < lane.length && lane.end[i] < t.to; i++) {
    if (lane.duration(i) > lane.duration(slowest)) slowest = i;
  }
  t.select({lane, i: slowest});
"""
LAST_STEPS = "const t = profilingLab.timeline; t.show(0.965 * t.to, t.to);"
SHOW = """(async () => {
  %s
  window.scrollTo({top: document.getElementById('%s').offsetTop - 56, behavior: 'instant'});
  await new Promise((r) => setTimeout(r, 300));
})()"""


@dataclass(frozen=True)
class Picture:
    recording: str
    section: str
    height: int
    file: str
    before: str = ""


PICTURES = {
    "timeline": Picture(
        "profiling_lab/exercises/e17_python_backtrace/recorded/demo_h200.sqlite",
        "timeline", 1010, "docs/report.png", SELECT,
    ),
    "roofline": Picture(
        "docs/roofline/demo_h200.sqlite.gz", "roofline", 980, "docs/roofline/report.png"
    ),
    "memory": Picture(
        "tests/data/memory_h200/eager.sqlite.gz",
        "timeline", 760, "docs/analysis/memory.png", LAST_STEPS,
    ),
}  # fmt: skip


def main() -> int:
    browser = find_browser()
    if browser is None:
        raise SystemExit("no Chromium or Chrome is on the PATH")
    for name in sys.argv[1:] or PICTURES:
        picture = PICTURES[name]
        with tempfile.TemporaryDirectory() as folder, Trace.open(REPO / picture.recording) as trace:
            page = Path(folder) / "report.html"
            page.write_bytes(build_page(trace).html)
            with Browser(browser, WIDTH, picture.height) as shown:
                shown.open(page)
                shown.run(SHOW % (picture.before, picture.section))
                shown.screenshot(REPO / picture.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
