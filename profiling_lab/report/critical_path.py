# SPDX-License-Identifier: Apache-2.0
"""The critical path of a step: by line, as a chain, and what changes would win."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from profiling_lab.analysis.critical_path.critical_path import (
    CriticalPath,
    PathChain,
    Prediction,
    Predictions,
)
from profiling_lab.analysis.critical_path.graph import Site
from profiling_lab.analysis.critical_path.kinds import COLLECTIVES, GPU, GROUPS, HOST, UNKNOWN, WAITS
from profiling_lab.analysis.critical_path.rows import Link, PathLine
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import trace_report
from profiling_lab.report.fields import Field, frame_fields, table_of
from profiling_lab.report.kernels.names import readable
from profiling_lab.report.lines.lines import shown_place
from profiling_lab.report.paths import shown_path
from profiling_lab.report.source_text import source_fields
from profiling_lab.report.table import ALWAYS, FIRST_TO_GO, SPARE, USUAL, Report, Table, Unit
from profiling_lab.trace import Trace

_WORDS = ("the host", "the GPU", "collectives", "waits between host and GPU", "what is unknown")
_KINDS_SHOWN = 3


def path_report(trace: Trace, result: CriticalPath) -> Report:
    """The path summed by line."""
    columns = [f"{_KEYS[group]}" for group in range(len(GROUPS)) if result.group_ns[group]]
    texts = trace.source_texts
    source = "source" if any(_has_source(texts, row) for row in result.lines) else ""
    table = table_of(
        (*_LINE_FIELDS, *source_fields(texts, "frame")),
        f"key {' '.join(columns)} path_ns share_frac gain_ns {source}",
        result.lines,
        result.total_matched,
    )
    return _report(trace, result, table)


def chain_report(trace: Trace, result: CriticalPath, chain: PathChain) -> Report:
    """The path in order of time."""
    table = table_of(_chain_fields(trace), "start_ns ns line kind name", chain.links, chain.total_matched)
    return _report(trace, result, table)


def what_if_report(trace: Trace, result: CriticalPath, predictions: Predictions) -> Report:
    """Steps with changes."""
    table = table_of(
        _CHANGE_FIELDS,
        "key path_ns before_ns after_ns gain_ns gain_frac",
        predictions.rows,
        predictions.total_matched,
    )
    return _report(trace, result, table)


def _report(trace: Trace, result: CriticalPath, table: Table) -> Report:
    step = result.step
    return trace_report(
        "critical-path",
        trace,
        result.coverage,
        _header(trace, result),
        table,
        step={
            "number": step.number,
            "name": step.name,
            "pid": step.pid,
            "start_ns": step.start_ns,
            "length_ns": step.length_ns,
            "plain_length_ns": step.plain_length_ns,
        },
        steps=result.steps,
        steps_by=result.how,
        path_ns=dict(zip(GROUPS, result.group_ns, strict=True)),
        verdict=verdict(result),
        notes=list(result.notes),
    )


def verdict(result: CriticalPath) -> str:
    """What sets the step's length, in a sentence."""
    length = sum(result.group_ns)
    if not length:
        return "the step takes no time"
    group = max(range(len(GROUPS)), key=lambda number: result.group_ns[number])
    said = f"the step is set by {_WORDS[group]} for {numbers.share(result.group_ns[group] / length)}"
    lines = [line for line in result.lines if line.group_ns[group]]
    if not lines or group == UNKNOWN:
        return said
    first = max(lines, key=lambda line: line.group_ns[group])
    share = first.group_ns[group] / result.group_ns[group]
    most = "most of it" if share > 0.5 else f"{numbers.share(share)} of it, the largest part,"
    where = shown_site(first.site)
    return f"{said}, {most} {where if first.frame is None else f'at {where}'}"


def _header(trace: Trace, result: CriticalPath) -> tuple[str, ...]:
    step = result.step
    which = f"step {step.number}" + (f" (the program's {step.name})" if step.is_named else "")
    median = f", the one of median length among {result.steps:,}" if result.steps > 1 else ""
    length = numbers.time(step.length_ns)
    parts = ", ".join(
        f"{name} {numbers.share(ns / step.length_ns if step.length_ns else 0.0)}"
        for name, ns in zip(GROUPS, result.group_ns, strict=True)
        if ns
    )
    return (
        verdict(result),
        f"  {which}{median}: {length} on the path: {parts}",
        f"  steps: {result.how}",
        *(f"  note: {note}" for note in result.notes),
    )


def shown_site(site: Site) -> str:
    """`model.py:87`, or what is known instead."""
    if site.frame is not None:
        return shown_place(site.frame)
    if site.between is not None:
        first, last = site.between
        there = "" if last.file == first.file else PurePosixPath(last.file).name
        return f"between {shown_place(first)} and {there}:{last.line}"
    return site.text


def _has_source(texts: Any, row: PathLine) -> bool:
    return row.frame is not None and (row.frame.file, row.frame.line) in texts


def _kinds(row: Link) -> str:
    shown = list(row.kind_ns)[:_KINDS_SHOWN]
    return ", ".join(shown) + (", .." if len(row.kind_ns) > _KINDS_SHOWN else "")


_KEYS = {
    HOST: "host_ns",
    GPU: "gpu_ns",
    COLLECTIVES: "collective_ns",
    WAITS: "wait_ns",
    UNKNOWN: "unknown_ns",
}


def _group_field(group: int, title: str, priority: int) -> Field:
    return Field(
        _KEYS[group], title, Unit.NS, "path", value=lambda row: row.group_ns[group], priority=priority
    )


_LINE_FIELDS = (
    Field("key", "line", cell=lambda row: shown_site(row.site), priority=ALWAYS, is_path=True),
    *frame_fields("frame", no_line=0),
    Field("no_line_because", value="site.text"),
    _group_field(HOST, "host", USUAL),
    _group_field(GPU, "GPU", USUAL),
    _group_field(COLLECTIVES, "collectives", SPARE),
    _group_field(WAITS, "waits", SPARE),
    _group_field(UNKNOWN, "unknown", FIRST_TO_GO),
    Field("path_ns", "on the path", Unit.NS, "path", priority=ALWAYS),
    Field("share_frac", "of the step", Unit.FRAC, priority=ALWAYS),
    Field("gain_ns", "gain without", Unit.NS, "path", priority=USUAL),
    Field("kinds", value="kind_ns"),
)


def _chain_fields(trace: Trace) -> tuple[Field, ...]:
    operations = trace.whole.operations
    names = zip(operations.names, operations.short_names, strict=True)
    short = {name: readable(name, short_name) for name, short_name in names}
    first_ns = trace.first_ns
    return (
        Field("key", value="number"),
        Field("start_ns", "at", Unit.NS, "at", cell=lambda row: row.start_ns - first_ns, priority=ALWAYS),
        Field("ns", "takes", Unit.NS, "takes", priority=ALWAYS),
        *frame_fields("frame", "function file", no_line=0),
        Field(
            "line",
            "line",
            value=lambda row: row.frame.line if row.frame else 0,
            cell=lambda row: shown_site(row.site),
            priority=ALWAYS,
            is_path=True,
        ),
        Field("no_line_because", value="site.text"),
        Field("kind", "with", cell=_kinds),
        Field(
            "name", "mostly", cell=lambda row: short.get(row.name, row.name), priority=SPARE, may_be_cut=True
        ),
        Field("kinds", value="kind_ns"),
    )


def _shown_change(row: Prediction) -> str:
    target, _, factor = row.key.rpartition("=")
    file, _, line = target.rpartition(":")
    return f"{shown_path(file)}:{line}={factor}" if line.isdecimal() else row.key


_CHANGE_FIELDS = (
    Field("key", "what if", cell=_shown_change, priority=ALWAYS, is_path=True),
    Field("path_ns", "on the path", Unit.NS, "step", priority=SPARE),
    Field("before_ns", "step", Unit.NS, "step", priority=USUAL),
    Field("after_ns", "predicted", Unit.NS, "step", priority=ALWAYS),
    Field("gain_ns", "gain", Unit.NS, "step", priority=ALWAYS),
    Field("gain_frac", "of the step", Unit.FRAC, priority=ALWAYS),
)
