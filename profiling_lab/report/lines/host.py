# SPDX-License-Identifier: Apache-2.0
"""The table of lines by samples of the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from profiling_lab.analysis.lines_host import HostLineRow, HostLinesResult
from profiling_lab.report import numbers
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.lines.lines import frame_data, shown_place, shown_row
from profiling_lab.report.source_text import source_fields
from profiling_lab.report.table import ALWAYS, SPARE, Report, Unit
from profiling_lab.trace import Trace

_THREADS_SHOWN = 4


def host_lines_report(trace: Trace, result: HostLinesResult) -> Report:
    """Rows of `lines --host` as a report."""
    rows, by = result.rows, result.by
    texts = trace.source_texts if by == "line" else {}
    fields = (
        Field("key", by, cell=lambda row: shown_row(row, by), priority=ALWAYS, is_path=True),
        Field("function", "function", priority=SPARE),
        Field("file"),
        Field("line"),
        Field("host_ns", "host", Unit.NS, priority=ALWAYS),
        Field("inclusive_ns", "with calls", Unit.NS, priority=SPARE),
        Field("samples", "samples", Unit.COUNT),
        Field("inclusive_samples"),
        Field("share_frac", "of samples", Unit.FRAC, priority=ALWAYS),
        Field("callers", value=lambda row: [frame_data(frame) for frame in row.callers]),
        Field("threads", value=lambda row: [asdict(thread) for thread in row.threads]),
        *source_fields(texts, lambda row: row),
    )
    function = "function" if by == "line" else ""
    inclusive = "inclusive_ns" if any(row.inclusive_samples != row.samples for row in rows) else ""
    source = "source" if any((row.file, row.line) in texts for row in rows) else ""
    table = table_of(
        fields,
        f"key {function} host_ns {inclusive} samples share_frac {source}",
        rows,
        result.total_matched,
        (tuple(_details(row)) for row in rows),
    )
    return Report(
        command="lines",
        trace={"path": str(trace.path)},
        header=tuple(host_header(trace, result)),
        table=table,
        coverage=host_coverage(result),
    )


def _details(row: HostLineRow) -> Iterator[str]:
    for frame in row.callers:
        yield f"< {shown_place(frame)} {frame.function}"


def host_header(trace: Trace, result: HostLinesResult) -> Iterator[str]:
    """How many samples there are, what they stand for, and how many have no line."""
    if result.window is not None:
        yield f"window: {result.window.text}"
    counted = numbers.counted(result.samples, "sample")
    shown = [f"{thread.thread}: {thread.samples:,}" for thread in result.threads[:_THREADS_SHOWN]]
    more = len(result.threads) - len(shown)
    others = f", {more} more" if more else ""
    threads = numbers.counted(len(result.threads), "thread")
    yield f"{trace.path.name}: {counted} of Python stacks in {threads} ({', '.join(shown)}{others})"
    period = result.period_ns
    if period is None:
        yield "host time is unknown: the file does not say how often it was sampled"
    else:
        how = ", the median interval" if result.is_measured else ""
        yield f"host time is samples x {numbers.time(period)}{how}: of every thread, computing or waiting"
    share = (result.samples - result.without_line) / result.samples
    yield f"{numbers.share(share)} has a line of your code"
    if result.without_line:
        in_libraries = numbers.share(result.without_line / result.samples)
        yield f"  {in_libraries} without a line: no frame of the stack is in your code"
    for note in _notes(result):
        yield f"  note: {note}"


def _notes(result: HostLinesResult) -> Iterator[str]:
    if result.without_stack:
        native = numbers.counted(result.without_stack, "CPU sample")
        yield f"{native} of native code without a Python stack: no row counts them"
    if result.missed_ns:
        missed = numbers.time(result.missed_ns)
        yield (
            f"no sample could be taken in {missed} of the whole recording (C code kept the GIL, or the "
            "machine was busy): this time is in no row"
        )


def host_coverage(result: HostLinesResult) -> dict[str, object]:
    """The same for machines."""
    window = result.window
    return {
        "samples": result.samples,
        "samples_without_line": result.without_line,
        "samples_without_stack": result.without_stack,
        "period_ns": result.period_ns,
        "period_is_measured": result.is_measured,
        "missed_ns": result.missed_ns,
        "threads": [asdict(thread) for thread in result.threads],
        "notes": list(_notes(result)),
        "window": None if window is None else {"text": window.text, "asked": dict(window.asked)},
    }
