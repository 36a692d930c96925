# SPDX-License-Identifier: Apache-2.0
"""The tree of calls with the GPU time that was spent under each."""

from __future__ import annotations

from profiling_lab.analysis.flame import CallNode, CallTree
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.lines import phase_columns, shown_place
from profiling_lab.report.table import Column, Report, Table, Unit, Value
from profiling_lab.trace import Trace
from profiling_lab.trace.phases import LINE_PHASES


def tree_report(trace: Trace, tree: CallTree, indent: str = "  ") -> Report:
    """Nodes of a call tree as a report, indented; times include what a line called but for `self`.

    indent: what stands before a node for each above it; Markdown swallows common spaces.
    """
    root = tree.nodes[0]
    columns = [
        Column("key", "line"),
        Column("function", "function"),
        *phase_columns([node.inclusive_phase_ns for node in tree.nodes], tree.phase),
        Column("self_ns", "self", Unit.NS),
        Column("share_frac", "of the tree", Unit.FRAC),
    ]
    rows = tuple(
        (indent * node.depth + _shown(node), *(_value(node, root, column.name) for column in columns[1:]))
        for node in tree.nodes
    )
    return Report(
        command="lines",
        trace={"path": str(trace.path)},
        header=coverage_header(trace, tree.coverage),
        table=Table(
            tuple(columns), rows, tree.total_nodes, data=tuple(_data(node, root, tree) for node in tree.nodes)
        ),
        coverage=coverage_data(tree.coverage),
    )


def _value(node: CallNode, root: CallNode, name: str) -> Value:
    if name == "function":
        return node.frame.function if node.frame else ""
    if name == "share_frac":
        return _share(node, root)
    if name == "gpu_ns":
        return node.inclusive_ns
    if name == "self_ns":
        return node.self_ns
    return node.inclusive_phase_ns[LINE_PHASES.index(name.removesuffix("_ns"))]


def _shown(node: CallNode) -> str:
    if node.frame:
        return shown_place(node.frame)
    return f"({node.reason})" if node.reason else "all"


def _share(node: CallNode, root: CallNode) -> float:
    return node.inclusive_ns / root.inclusive_ns if root.inclusive_ns else 0.0


def _data(node: CallNode, root: CallNode, tree: CallTree) -> dict[str, object]:
    frame = node.frame
    return {
        "key": node.key,
        "parent": tree.nodes[node.parent].key if node.parent >= 0 else None,
        "depth": node.depth,
        "function": frame.function if frame else "",
        "file": frame.file if frame else "",
        "line": frame.line if frame else 0,
        "reason": node.reason,
        **{f"{name}_ns": ns for name, ns in zip(LINE_PHASES, node.inclusive_phase_ns, strict=True)},
        "inclusive_ns": node.inclusive_ns,
        "self_ns": node.self_ns,
        "operations": node.operations,
        "share_frac": round(_share(node, root), 6),
    }
