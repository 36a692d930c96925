# SPDX-License-Identifier: Apache-2.0
"""The tree of calls with the GPU time that was spent under each."""

from __future__ import annotations

from profiling_lab.analysis.flame import CallNode, CallTree
from profiling_lab.records import replace
from profiling_lab.report.coverage_text import trace_report
from profiling_lab.report.fields import Field, frame_fields, table_of
from profiling_lab.report.lines.lines import of_phase, shown_phases, shown_place
from profiling_lab.report.source_text import source_fields, text_of
from profiling_lab.report.table import ALWAYS, SPARE, Report, Unit
from profiling_lab.trace import Trace
from profiling_lab.trace.phases import LINE_PHASES


def tree_report(trace: Trace, tree: CallTree) -> Report:
    """Nodes of a call tree as a report, indented; times include what a line called but for `self`."""
    phases = shown_phases([node.inclusive_phase_ns for node in tree.nodes], tree.phase, total="inclusive_ns")
    texts = trace.source_texts
    source = "source" if any(text_of(texts, node.frame) for node in tree.nodes) else ""
    table = table_of(
        (*_fields(tree, of_phase(phases)), *source_fields(texts, "frame")),
        f"key function {phases} self_ns share_frac {source}",
        tree.nodes,
        tree.total_nodes,
    )
    return trace_report("lines", trace, tree.coverage, (), table)


def _fields(tree: CallTree, phases: int) -> tuple[Field, ...]:
    all_ns = tree.nodes[0].inclusive_ns
    function, *place = frame_fields("frame", no_line=0)
    return (
        Field(
            "key", "line", cell=lambda node: "  " * node.depth + _shown(node), priority=ALWAYS, is_path=True
        ),
        Field("parent", value=lambda node: tree.nodes[node.parent].key if node.parent >= 0 else None),
        Field("depth"),
        replace(function, title="function", priority=SPARE),
        *place,
        Field("reason"),
        *(replace(_phase_field(i, phase), priority=phases) for i, phase in enumerate(LINE_PHASES)),
        Field("inclusive_ns", "total", Unit.NS, priority=ALWAYS),
        Field("self_ns", "self", Unit.NS),
        Field("operations"),
        Field(
            "share_frac",
            "of the tree",
            Unit.FRAC,
            value=lambda node: node.inclusive_ns / all_ns if all_ns else 0.0,
            priority=ALWAYS,
        ),
    )


def _phase_field(number: int, phase: str) -> Field:
    return Field(f"{phase}_ns", phase, Unit.NS, value=lambda node: node.inclusive_phase_ns[number])


def _shown(node: CallNode) -> str:
    if node.frame:
        return shown_place(node.frame)
    return f"({node.reason})" if node.reason else "all"
