# SPDX-License-Identifier: Apache-2.0
"""The summary of the demo's recording, as text and as JSON."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import PurePath
from typing import Any, TextIO

import msgspec

from profiling_lab.analysis.bottleneck import Bottleneck
from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.lines import lines
from profiling_lab.demo.cost import Cost, read_cost
from profiling_lab.demo.program import FOLDER
from profiling_lab.report import bottleneck, numbers
from profiling_lab.report.coverage_text import coverage_data
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.kernels.kernels import kernels_report
from profiling_lab.report.lines.lines import lines_report
from profiling_lab.report.screen.encoding import held_json
from profiling_lab.report.screen.terminal import say
from profiling_lab.report.table import ALWAYS, SCHEMA, SPARE, Report, Table, Unit, write
from profiling_lab.trace import Trace

KERNELS = 3
FRAMES = 3
LINES = 10

_FIELDS = (
    Field("place", "line", value=lambda row: f"{PurePath(row.file).name}:{row.line}", priority=ALWAYS),
    Field("function", "function", priority=SPARE),
    Field("forward_ns", "forward", Unit.NS),
    Field("backward_ns", "backward", Unit.NS),
    Field("optimizer_ns", "optimizer", Unit.NS),
    Field("kernels", "kernels", Unit.COUNT, priority=SPARE),
    Field("share_frac", "of GPU time", Unit.FRAC, priority=ALWAYS),
)


def tell(trace: Trace, form: str = "table", stream: TextIO | None = None) -> None:
    """Print the summary of a recording: its contents and overhead, kernels, lines, unattributed time, and the
    conclusion.

    form: "table" for text, "json" for machines. Raises NotEnoughDataError if no kernel has a Python
    line.
    """
    stream = stream or sys.stdout
    found, cost = bottleneck.find(trace, sources=FOLDER), read_cost(trace)
    if form == "json":
        text = msgspec.json.format(msgspec.json.encode(_data(trace, found, cost)), indent=2).decode()
        stream.write(f"{held_json(stream, text)}\n")
        return
    say(stream, _recorded(trace, found, cost))
    say(stream, ["", "Top CUDA kernels by time", *bottleneck.kernel_tree(found, KERNELS, FRAMES)])
    say(stream, ["", "GPU time by line, over the whole recording"])
    write(Report("demo", {}, (), _line_table(found), {}, has_csv=False), "table", stream)
    say(stream, _rest(found))
    say(stream, ["", f"Conclusion: {bottleneck.conclusion(found)}"])


def gpu_name(trace: Trace) -> str:
    """The name of the recorded GPU."""
    return ", ".join(sorted({gpu.name for gpu in trace.gpus})) or "an unknown GPU"


def _recorded(trace: Trace, found: Bottleneck, cost: Cost | None) -> list[str]:
    kernels = (
        f"{numbers.count(found.coverage.kernels)} kernels, {numbers.time(found.coverage.gpu_ns)} of GPU time"
    )
    if cost is None:
        return [f"Recorded: {trace.path.name} on {gpu_name(trace)}: {kernels}"]
    return [
        f"Recorded: {cost.recorded_steps} steps of train_model.py --heavy {cost.heavy} on {gpu_name(trace)}: "
        f"{kernels}",
        f"Cost:     {cost.plain_step_ns / 1e6:.2f} ms per step without the recorder, "
        f"{cost.recorded_step_ns / 1e6:.2f} ms with it ({100 * cost.overhead_frac:+.1f} %; "
        f"medians of {cost.rounds} rounds of {cost.steps_per_round} steps, interleaved)",
    ]


def _line_table(found: Bottleneck) -> Table:
    shown = found.lines[:LINES]
    columns = "place function forward_ns backward_ns optimizer_ns kernels share_frac"
    return table_of(_FIELDS, columns, shown, len(shown))


def _rest(found: Bottleneck) -> list[str]:
    """The GPU time that is not in the table, with the reason."""
    more, coverage = found.lines[LINES:], found.coverage
    text = []
    if more:
        share = numbers.share(sum(row.share_frac for row in more))
        text.append(f"and {len(more)} more lines with {share} together")
    text.append(
        f"{numbers.share(coverage.attributed_frac)} of the GPU time has a Python line."
        + " Without a line:" * bool(coverage.unattributed)
    )
    text += [
        f"  {numbers.time(part.ns)} ({numbers.share(part.ns / coverage.gpu_ns)}): {part.reason}"
        for part in coverage.unattributed
    ]
    return text + [f"  note: {note}" for note in coverage.notes]


def _data(trace: Trace, found: Bottleneck, cost: Cost | None) -> dict[str, Any]:
    first = found.layers[0]
    return {
        "schema": SCHEMA,
        "command": "demo",
        "trace": {"path": str(trace.path), "gpu": gpu_name(trace)},
        "data": {
            "cost": asdict(cost) | {"overhead_frac": round(cost.overhead_frac, 6)} if cost else None,
            "kernels": kernels_report(trace, top_kernels(trace)).table.data,
            "lines": lines_report(trace, lines(trace)).table.data,
            "layers": [
                {
                    "key": layer.name,
                    "file": layer.file,
                    "line": layer.line,
                    "forward_ns": layer.forward_ns,
                    "backward_ns": layer.backward_ns,
                    "kernels": layer.kernels,
                    "share_frac": round(layer.share_frac, 6),
                }
                for layer in found.layers
            ],
            "conclusion": {
                "layer": first.name,
                "is_bottleneck": found.is_clear,
                "text": bottleneck.conclusion(found),
            },
        },
        "coverage": coverage_data(found.coverage),
    }
