# SPDX-License-Identifier: Apache-2.0
"""What the page says: the tables of `lines`, `check`, `kernels` and other verbs, as these give them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from profiling_lab.analysis.copies import CopiesResult, copies
from profiling_lab.analysis.coverage import Coverage, coverage
from profiling_lab.analysis.energy.energy import energy
from profiling_lab.analysis.gaps.gaps import GapsResult, gaps
from profiling_lab.analysis.info import TraceInfo, info
from profiling_lab.analysis.kernels.kernels import KernelsResult, top_kernels
from profiling_lab.analysis.lines import LinesResult, lines
from profiling_lab.analysis.lines_host import HostLinesResult, host_lines
from profiling_lab.analysis.ranges.ranges import RangesResult, ranges
from profiling_lab.analysis.steps import PARTS, StepsResult, steps
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.records import dataclass
from profiling_lab.report import numbers
from profiling_lab.report.check import check_report
from profiling_lab.report.copies import copies_report
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.gaps import gaps_report
from profiling_lab.report.html.verdict import host_verdict, verdict
from profiling_lab.report.kernels.kernels import kernels_report
from profiling_lab.report.lines.host import host_lines_report
from profiling_lab.report.lines.lines import lines_report
from profiling_lab.report.ranges import ranges_report
from profiling_lab.report.steps import steps_report
from profiling_lab.report.table import Report
from profiling_lab.rules import RULES, Checked
from profiling_lab.rules import run as apply_rules
from profiling_lab.trace import Trace
from profiling_lab.trace.ownership import Ownership

T = TypeVar("T")
Json = dict[str, Any]
Progress = Callable[[str], None]

ROWS_AT_MOST = {
    "lines": 1000, "findings": 200, "gaps": 300, "steps": 2000, "copies": 300, "kernels": 500, "ranges": 500,
    "host": 500,
}  # fmt: skip
"""the most rows in a table of the page, which says how many there are"""
NO_ROOFLINE = (
    "roofline: the file holds neither counted work nor the shapes of the operators, so neither FLOPs nor "
    "bytes of a kernel are known; record with profiling-lab record --work"
)
SHAPES_ALONE = (
    "roofline: the file has shapes of inputs, but no counters of the hardware; what a kernel really computed "
    "and moved is not known"
)
# What the page's script reads of a row besides its cells; of other tables it may read everything.
_USED = {"kernels": ("name",), "ranges": ("name",), "host": ("file", "line", "source")}
_KERNEL_STACKS, _KERNEL_FRAMES = 2, 1
_NOTHING = {"copies": "nothing was copied or set"}
# Of what our recorder noted about itself, what may be shown: never arguments or the environment.
_VERSIONS = {"torch_version": "torch", "python_version": "Python", "cupti_version": "CUPTI"}
_COSTS = {
    "overhead_callback_ns": "per recorded call",
    "overhead_start_ns": "to start",
    "overhead_flush_ns": "in flushes",
}


@dataclass(frozen=True, slots=True)
class AnalysisResults:
    """The results of all analyses; None with the reason in `absent` where one has no answer."""

    info: TraceInfo
    coverage: Coverage | None
    lines: LinesResult | None
    by_range: LinesResult | None
    """GPU time by NVTX range or operator, where no line is known"""
    kernels: KernelsResult | None
    ranges: RangesResult | None
    host: HostLinesResult | None
    checked: Checked | None
    gaps: GapsResult | None
    copies: CopiesResult | None
    steps: StepsResult | None
    absent: dict[str, str]


def run_analyses(
    trace: Trace, own: tuple[str, ...], steps_by: str | None, progress: Progress
) -> AnalysisResults:
    """Run the analyses. What a trace cannot answer is no error here: the page says so."""
    absent: dict[str, str] = {}

    def answer(name: str, question: Callable[[], T]) -> T | None:
        progress(name)
        try:
            return question()
        except NotEnoughDataError as error:
            absent[name] = without_folder(trace, str(error))
            return None

    own_row = trace.stacks.own_rows(Ownership(own))
    most = ROWS_AT_MOST
    by_line = answer("lines", lambda: lines(trace, own=own, limit=most["lines"]))
    return AnalysisResults(
        info=info(trace),
        coverage=answer("coverage", lambda: coverage(_with_operations(trace), own_row)),
        lines=by_line,
        by_range=None if by_line and by_line.rows else answer("ranges", lambda: _by_range(trace, own)),
        kernels=answer("kernels", lambda: top_kernels(_with_operations(trace), most["kernels"], own)),
        ranges=answer("ranges", lambda: ranges(trace, own=own, limit=most["ranges"])),
        host=answer("host", lambda: host_lines(trace, own=own, limit=most["host"])),
        checked=answer("findings", lambda: apply_rules(trace, RULES, own)),
        gaps=answer("gaps", lambda: gaps(_with_operations(trace), steps_by, own)),
        copies=answer("copies", lambda: copies(_with_operations(trace), own=own, limit=most["copies"])),
        steps=answer("steps", lambda: steps(trace, steps_by, most["steps"])),
        absent=absent,
    )


def _by_range(trace: Trace, own: tuple[str, ...]) -> LinesResult | None:
    found = lines(_with_operations(trace), "range", own=own, limit=ROWS_AT_MOST["lines"])
    return found if found.rows else None


def without_folder(trace: Trace, text: str) -> str:
    """Whoever is sent the page does not see in which folder the file is."""
    return text.replace(str(trace.path), trace.path.name)


def _with_operations(trace: Trace) -> Trace:
    if not len(trace.operations):
        raise NotEnoughDataError(trace.why_empty())
    return trace


def page_data(trace: Trace, answers: AnalysisResults, origin_ns: int, title: str) -> Json:
    """Everything of the page but the timeline. `origin_ns`: the time that the timeline counts from."""
    found = answers
    reports: dict[str, Report | None] = {
        "lines": lines_report(trace, found.lines) if found.lines else None,
        "findings": check_report(trace, found.checked, found.coverage, ROWS_AT_MOST["findings"])
        if found.checked and found.coverage
        else None,
        "kernels": kernels_report(trace, found.kernels, _KERNEL_STACKS, _KERNEL_FRAMES)
        if found.kernels
        else None,
        "gaps": gaps_report(trace, found.gaps) if found.gaps else None,
        "copies": copies_report(trace, found.copies) if found.copies and found.copies.rows else None,
        "steps": steps_report(trace, found.steps) if found.steps else None,
        "ranges": ranges_report(trace, found.ranges) if found.ranges else None,
        "host": host_lines_report(trace, found.host) if found.host else None,
    }
    sections: Json = {
        name: {"absent": found.absent.get(name, _NOTHING.get(name, ""))}
        if report is None
        else table_json(trace, report, name)
        for name, report in reports.items()
    }
    if found.by_range:
        sections["lines"]["instead"] = table_json(trace, lines_report(trace, found.by_range), "lines")
    if (checks := reports["findings"]) is not None:
        sections["findings"] |= {key: checks.coverage[key] for key in ("silent", "abstained")}
    if found.steps:
        sections["steps"] |= {
            "how": found.steps.how,
            "sign": found.steps.sign,
            "median_ns": found.steps.median_ns,
            "steps": found.steps.steps,
            "at": [[row.start_ns - origin_ns, row.end_ns - origin_ns] for row in found.steps.rows],
        }
    of = "this part of the recording" if trace.window else "the recording"
    empty = host_verdict(without_folder(trace, trace.why_empty()), found.host)
    return {
        "title": title,
        "file": trace.path.name,
        "window": _window(trace),
        "recorder": trace.recorder,
        "facts": [*_facts(found.info), *_energy(trace)],
        "verdict": verdict(found.gaps, found.lines, of) if found.gaps else empty,
        "tiles": _tiles(found),
        "parts": dict(zip(PARTS, found.gaps.parts_ns, strict=True)) if found.gaps else {},
        "coverage": coverage_data(found.coverage) if found.coverage else {},
        "coverage_text": list(coverage_header(trace, found.coverage)) if found.coverage else [],
        "missing": [*_missing(found.info), *_no_roofline(trace)],
        **sections,
    }


def table_json(trace: Trace, report: Report, name: str) -> Json:
    """A table as people see it (`rows`, by column) and what `--format json` has (`data`)."""
    table, most = report.table, ROWS_AT_MOST[name]
    shown = [i for i, column in enumerate(table.columns) if column.name != "source"]  # is below the line
    return {
        "columns": [
            {"name": c.name, "title": c.title, "unit": c.unit.value, "scale": c.scale}
            for c in (table.columns[i] for i in shown)
        ],
        "rows": [[row[i] for i in shown] for row in table.rows[:most]],
        "details": [list(lines) for lines in table.details[:most]],
        "data": [_used(row, name) for row in table.data[:most]] if table.data is not None else [],
        "total_matched": table.total_matched,
        "header": [without_folder(trace, line) for line in report.header],
    }


def _used(row: Json, table: str) -> Json:
    return {name: row[name] for name in _USED[table] if name in row} if table in _USED else row


def _window(trace: Trace) -> str:
    return trace.window.text if trace.window else ""


def _energy(trace: Trace) -> list[list[str]]:
    if not trace.whole.source.energy():
        return []
    try:
        result = energy(trace)
    except NotEnoughDataError:
        return []
    step = "" if result.step_j is None else f", {numbers.amount(result.step_j, 'J')} per step"
    watts = sum(each.mean_w for each in result.devices)
    return [["energy", f"{numbers.amount(result.joules, 'J')}, {watts:,.0f} W on average{step}"]]


def _facts(facts: TraceInfo) -> list[list[str]]:
    names = Counter(gpu.name for gpu in facts.gpus)  # whose memory may differ by a page
    gpus = [f"{f'{n} x ' if n > 1 else ''}{gpu}" for gpu, n in names.items()]
    noted = dict(facts.recorder)
    versions = [f"{what} {noted[name]}" for name, what in _VERSIONS.items() if noted.get(name)]
    costs = [
        f"{numbers.time(int(noted[name]))} {what}"
        for name, what in _COSTS.items()
        if noted.get(name, "").isdecimal()
    ]
    duration = "" if facts.duration_ns is None else numbers.time(facts.duration_ns)
    told = {
        "GPU": ", ".join(gpus),
        "driver": facts.driver,
        "recorded by": f"{facts.product}{f', schema {facts.schema}' if facts.schema else ''}",
        "program": ", ".join(versions),
        "started": facts.started_utc,
        "duration": duration,
        "size": numbers.size(facts.file_bytes),
        "processes": ", ".join(facts.processes),
        "recording cost": ", ".join(costs),
    }
    return [[what, value] for what, value in told.items() if value]


def _tiles(found: AnalysisResults) -> list[Json]:
    out = []
    if found.coverage:
        covered = found.coverage
        whole = covered.span_ns * max(1, covered.devices)
        if found.gaps:
            whole = found.gaps.span_ns
        busy = covered.busy_ns / whole if whole else 0.0
        out.append(
            _tile("GPU time", numbers.time(covered.gpu_ns), numbers.counted(covered.kernels, "kernel"))
        )
        devices = numbers.counted(covered.devices, "GPU")
        out.append(_tile("GPU busy", numbers.share(busy), f"of {numbers.time(covered.span_ns)}, {devices}"))
    if found.steps and found.steps.sign != "window":
        median = numbers.time(found.steps.median_ns)
        out.append(_tile("median step", median, numbers.counted(found.steps.steps, "step")))
    if found.lines and found.lines.rows:
        row = found.lines.rows[0]
        place = f"{row.file.rpartition('/')[2]}:{row.line}"
        out.append(_tile("top line", numbers.share(row.share_frac), place))
    if found.coverage:
        share = numbers.share(found.coverage.attributed_frac)
        out.append(_tile("has a line", share, "of the GPU time"))
    if found.host:
        noun = numbers.counted(len(found.host.threads), "thread")
        out.append(_tile("host samples", numbers.count(found.host.samples), f"of Python stacks, {noun}"))
    if found.checked:
        abstained = numbers.counted(len(found.checked.abstained), "rule")
        count = numbers.count(len(found.checked.findings))
        out.append(_tile("findings", count, f"{abstained} could not tell"))
    return out


def _tile(what: str, value: str, note: str) -> Json:
    return {"what": what, "value": value, "note": note}


def _no_roofline(trace: Trace) -> list[str]:
    if trace.work is not None:
        return []
    return [SHAPES_ALONE if trace.input_shapes else NO_ROOFLINE]


def _missing(facts: TraceInfo) -> list[str]:
    """What is not in the file, and what would have recorded it."""
    return [
        f"{part.what}: {part.missing}" if part.missing else part.what
        for part in facts.recorded
        if not part.rows
    ]
