# SPDX-License-Identifier: Apache-2.0
"""One self-contained page about a trace: tables, findings, timeline and flame graph, without a network.

data.py asks the analyses and writes their tables as JSON. lanes.py, keep.py, timeline_levels.py and
timeline.py turn the events into columns, packing.py into a payload of a few bytes per event. page.py puts
both and the page's own script and style (assets/) into one file.
"""

from __future__ import annotations

from profiling_lab.report.html.page import Page, build_page

__all__ = ["Page", "build_page"]
