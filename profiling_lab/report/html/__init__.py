# SPDX-License-Identifier: Apache-2.0
"""One self-contained page about a trace: tables, findings, timeline and flame graph, without a network.

data.py asks the analyses and writes their tables as JSON. lanes.py (with device_lanes.py and thread_lanes.py)
puts every event of the trace into a lane, keep.py chooses what a page can hold one by one,
timeline_levels.py says what lanes look like from afar, timeline.py and packing.py make a payload of a few
bytes per event of all that. page.py puts both and the page's own script and style (assets/) into one file.
"""

from __future__ import annotations

from profiling_lab.report.html.page import Page, build_page

__all__ = ["Page", "build_page"]
