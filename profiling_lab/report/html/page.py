# SPDX-License-Identifier: Apache-2.0
"""The file: data, timeline, script and style in one HTML page that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import numpy as np

from profiling_lab.errors import LabError
from profiling_lab.records import dataclass
from profiling_lab.report.html.data import AnalysisResults, page_data, run_analyses
from profiling_lab.report.html.keep import TimeRange
from profiling_lab.report.html.lane import Lanes
from profiling_lab.report.html.lanes import lanes_of
from profiling_lab.report.html.timeline import TimelinePacker, choose, windows_by_interest
from profiling_lab.report.json_text import encode, readable
from profiling_lab.report.roofline.plot import section
from profiling_lab.trace import Trace
from profiling_lab.trace.operation_classes import device_tracks

MOST_BYTES = 10_000_000
EVENTS_AT_MOST = 1_200_000
"""the events that a page first shows one by one; fewer where it grows beyond MOST_BYTES"""
OPENS_AT_GAP_FRAC = 0.1
"""with this share of idle time the timeline opens at the worst gap, else at the first step"""

_UNIT = re.compile(r"(?<=\d) (?=(%|s|ms|µs|ns)(\W|$))")
"""the space between a number and its unit, where no line may end"""

SCRIPTS = (
    "format.js",
    "inflate.js",
    "payload.js",
    "lane.js",
    "draw.js",
    "timeline.js",
    "controls.js",
    "details.js",
    "interval.js",
    "search.js",
    "flame.js",
    "sorting.js",
    "tables.js",
    "summary.js",
    "steps.js",
    "place.js",
    "main.js",
)


@dataclass(frozen=True, slots=True)
class Page:
    """A finished page."""

    html: bytes
    events: int
    """events of the trace that the timeline shows"""
    kept: int
    """those of them that are in the page one by one; the rest is in its levels of detail"""


def build_page(
    trace: Trace,
    title: str | None = None,
    own: tuple[str, ...] = (),
    steps_by: str | None = None,
    progress: Callable[[str], None] = lambda text: None,
    events_at_most: int = EVENTS_AT_MOST,
) -> Page:
    """The page of a trace. own, steps_by: as for `lines` and `steps`. progress: called with the current part.

    Raises UsageError for what an analysis cannot be asked, UnreadableInputError for a damaged file.
    """
    answers = run_analyses(trace, own, steps_by, progress)
    progress("timeline")
    lanes = lanes_of(trace, own)
    data = page_data(trace, answers, lanes.origin_ns, title or trace.path.name)
    events = sum(map(len, lanes.lanes))
    worst = _worst_gap(trace, lanes)
    wanted = _windows(answers, lanes, worst)
    data["open"] = _opens_at(answers, lanes, worst)
    roof = section(trace, own)
    while True:
        kept = choose(lanes, wanted, events_at_most)
        packer = TimelinePacker(trace, own, lanes, kept)
        head = packer.head()
        evidence = [finding.evidence for finding in answers.checked.findings] if answers.checked else []
        data["evidence"] = packer.places(evidence)
        data["notes"] = [*lanes.notes, *_told(events, kept.events, events - kept.events)]
        progress("page")
        page = _assemble(data, packer.packer.pack(head), roof)
        if len(page) <= MOST_BYTES or kept.events < 10_000:
            return Page(page, events, kept.events)
        events_at_most = min(kept.events, events_at_most) * 2 // 3


def _told(events: int, kept: int, left: int) -> list[str]:
    if not left:
        return []
    return [
        f"{kept:,} of {events:,} events are in this page one by one: around the worst gap, the slowest step, "
        f"the first steps and on from there. The other {left:,} are shown as buckets, which say how "
        "busy a lane was and with what most; tables and flame graph count all of them"
    ]


def _worst_gap(trace: Trace, lanes: Lanes) -> TimeRange | None:
    """The longest idle time of a device, counted from the beginning of the timeline."""
    operations, worst = trace.operations, (0, 0)
    device, devices = device_tracks(operations)
    for number in range(len(devices)):
        here = np.flatnonzero(device == number)
        here = here[np.argsort(operations.start_ns[here], kind="stable")]
        until = np.maximum.accumulate(operations.end_ns[here])[:-1]
        gap_ns = operations.start_ns[here[1:]] - until
        if len(gap_ns) and gap_ns.max() > worst[1] - worst[0]:
            longest = int(gap_ns.argmax())
            worst = int(until[longest]), int(operations.start_ns[here[1:]][longest])
    return (worst[0] - lanes.origin_ns, worst[1] - lanes.origin_ns) if worst != (0, 0) else None


def _windows(answers: AnalysisResults, lanes: Lanes, worst: TimeRange | None) -> list[TimeRange]:
    rows = answers.steps.rows if answers.steps else ()
    return windows_by_interest(
        lanes.span_ns,
        lanes.origin_ns,
        np.array([row.start_ns for row in rows], dtype=np.int64),
        np.array([row.end_ns for row in rows], dtype=np.int64),
        worst,
    )


def _opens_at(answers: AnalysisResults, lanes: Lanes, worst: TimeRange | None) -> dict[str, Any]:
    span_ns, gaps, steps = lanes.span_ns, answers.gaps, answers.steps
    if worst is not None and gaps is not None and gaps.idle_frac >= OPENS_AT_GAP_FRAC:
        around = (worst[1] - worst[0]) // 4
        return {"from": max(0, worst[0] - around), "to": min(span_ns, worst[1] + around),
                "why": "the longest time in which a GPU was idle"}  # fmt: skip
    if steps is not None and steps.sign != "window" and steps.rows:
        first = min(steps.rows, key=lambda row: row.start_ns)
        start, end = first.start_ns - lanes.origin_ns, first.end_ns - lanes.origin_ns
        around = (end - start) // 20
        return {"from": max(0, start - around), "to": min(span_ns, end + around), "why": "the first step"}
    return {"from": 0, "to": span_ns, "why": "the whole recording"}


def _assemble(data: dict[str, Any], payload: str, roof: str) -> bytes:
    script = "(() => {\n'use strict';\n" + "\n".join(map(_asset, SCRIPTS)) + "\n})();"
    style = _asset("style.css")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "POLICY": policy,
        "TITLE": html.escape(data["title"]),
        "FILE": html.escape(data["file"]),
        "VERDICT": html.escape(_UNIT.sub("\u00a0", data["verdict"])),
        "STYLE": style,
        "DATA": _json(data),
        "ROOFLINE_LINK": '<a href="#roofline">Roofline</a>' if roof else "",
        "ROOFLINE": roof,
        "TIMELINE": payload,
        "SCRIPT": script,
    }
    page = _asset("page.html")
    # One pass: what was filled in is not searched for marks again.
    pieces = page.split("%%")
    pieces[1::2] = [parts[name] for name in pieces[1::2]]
    return readable("".join(pieces)).encode()


def _json(data: dict[str, Any]) -> str:
    """JSON that cannot end the element around it, whatever its strings hold."""
    text = encode(data).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _asset(name: str) -> str:
    try:
        return (files("profiling_lab.report.html") / "assets" / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LabError(f"the installed package lacks the page's {name}: install it again") from None
