# SPDX-License-Identifier: Apache-2.0
"""Take README's picture of a report: the timeline of the H200 recording that ships with the package, with the
slowest kernel of its first step selected.

    python tools/report_picture.py docs/report.png

Needs a Chromium or Chrome.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests"))

from browser import Browser, find_browser  # noqa: E402

from profiling_lab.report.html import build_page  # noqa: E402
from profiling_lab.trace import Trace  # noqa: E402

RECORDING = REPO / "profiling_lab/exercises/e17_python_backtrace/recorded/demo_h200.sqlite"
WIDTH, HEIGHT = 1280, 1010
SELECT = """(async () => {
  const t = profilingLab.timeline, lane = t.lanes.find((l) => l.kind === 'stream');
  let slowest = 0;
  for (let i = 0; i < lane.length && lane.end[i] < t.to; i++) {
    if (lane.duration(i) > lane.duration(slowest)) slowest = i;
  }
  t.select({lane, i: slowest});
  window.scrollTo({top: document.getElementById('timeline').offsetTop - 56, behavior: 'instant'});
  await new Promise((r) => setTimeout(r, 300));
})()"""


def main() -> int:
    browser = find_browser()
    if browser is None:
        raise SystemExit("no Chromium or Chrome is on the PATH")
    with tempfile.TemporaryDirectory() as folder, Trace.open(RECORDING) as trace:
        page = Path(folder) / "report.html"
        page.write_bytes(build_page(trace).html)
        with Browser(browser, WIDTH, HEIGHT) as shown:
            shown.open(page)
            shown.run(SELECT)
            shown.screenshot(Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
