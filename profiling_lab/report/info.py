# SPDX-License-Identifier: Apache-2.0
"""What a trace holds, as a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from profiling_lab.analysis.coverage import LOST, Coverage
from profiling_lab.analysis.info import Gpu, TraceInfo
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.table import ALWAYS, Report, Unit
from profiling_lab.trace import Trace

_FIELDS = (
    Field("key"),
    Field("what", "what", priority=ALWAYS),
    Field("rows", "recorded", Unit.COUNT, priority=ALWAYS),
    Field("missing", "what would have recorded it", value=lambda part: "" if part.rows else part.missing),
)


def info_report(trace: Trace, facts: TraceInfo, coverage: Coverage | None) -> Report:
    """`coverage` is None for a trace without GPU operations."""
    described: dict[str, Any] = asdict(facts) | {"recorder": dict(facts.recorder)}
    del described["recorded"]
    return Report(
        command="info",
        trace=described,
        header=(*_header(facts), *(coverage_header(trace, coverage) if coverage else (trace.why_empty(),))),
        table=table_of(_FIELDS, "what rows missing", facts.recorded, len(facts.recorded)),
        coverage=coverage_data(coverage) if coverage else {},
    )


def _gpu(gpu: Gpu) -> str:
    if not gpu.compute:
        return gpu.name
    return f"{gpu.name} (compute {gpu.compute}, {gpu.multiprocessors} SMs, {numbers.size(gpu.memory_bytes)})"


def _header(facts: TraceInfo) -> tuple[str, ...]:
    known = "unknown, the file does not say"
    # Counted as they read: the memory of like GPUs may differ by a page.
    numbered = Counter(map(_gpu, facts.gpus)).items()
    gpus = ", ".join(f"{number} x {gpu}" if number > 1 else gpu for gpu, number in numbered)
    lines = [
        f"file       {facts.path}, {numbers.size(facts.file_bytes)}",
        f"recorded   by {facts.product or known}" + (f", schema {facts.schema}" if facts.schema else ""),
        f"started    {facts.started_utc or known}",
        f"duration   {known if facts.duration_ns is None else numbers.time(facts.duration_ns)}",
        f"GPU        {gpus or known}",
        f"driver     {facts.driver or known}",
        f"processes  {', '.join(facts.processes) or known}",
        *(f"  {rank}" for rank in facts.ranks),
        f"timing     {facts.method or known}",
    ]
    if facts.options:
        lines.append(f"options    {' '.join(facts.options)}")
    if facts.events is not None:
        produced, kept = (numbers.count(number) for number in facts.events)
        lines.append(f"events     {produced} CUDA events produced, {kept} kept")
    if facts.overhead_ns is not None:
        lines.append(f"overhead   {numbers.time(facts.overhead_ns)} of the profiler's own, where it noted it")
    lines += _recorder_lines(dict(facts.recorder))
    lines += [f"  warning: {text}" for text in facts.warnings]
    return tuple(lines)


def _recorder_lines(facts: dict[str, str]) -> list[str]:
    """What our recorder noted, for people; JSON has all of it."""
    lines = []
    versions = {"torch": "torch_version", "Python": "python_version", "CUPTI": "cupti_version"}
    named = [f"{what} {facts[name]}" for what, name in versions.items() if facts.get(name)]
    if facts.get("script") or named:
        lines.append(f"program    {', '.join(filter(None, (facts.get('script', ''), *named)))}")
    states = {"stacks": "stacks_state", "autograd link": "autograd_link", "NVTX": "nvtx_state", "GPU": "gpu"}
    said = [f"{what} {facts[name]}" for what, name in states.items() if facts.get(name)]
    if said:
        lines.append(f"switches   {', '.join(said)}")
    lost = {name: int(value) for name, value in facts.items() if name in LOST and value.isdecimal()}
    if lost:
        counted = [f"{number:,} {name.replace('_', ' ')}" for name, number in lost.items() if number]
        if (skipped := facts.get("unreadable_bytes", "")).isdecimal() and int(skipped):
            counted.append(f"{int(skipped):,} bytes of the capture, which could not be read")
        lines.append(f"lost       {', '.join(counted) or 'nothing'}")
    costs = {
        "per recorded call": "overhead_callback_ns",
        "to start": "overhead_start_ns",
        "in flushes": "overhead_flush_ns",
    }
    cost = [
        f"{numbers.time(int(facts[name]))} {what}"
        for what, name in costs.items()
        if facts.get(name, "").isdecimal()
    ]
    if cost:
        lines.append(f"cost       {', '.join(cost)}")
    return lines
