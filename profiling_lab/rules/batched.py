# SPDX-License-Identifier: Apache-2.0
"""What is left of many short kernels when they are batched and fused.

A kernel that comes again and again, with nothing but others of the same code in between, comes once where its
loop is a batch. The batch takes as long as all of them on the SMs that they fill, and at least as one. No
batch reaches over a wait of the host. What comes again in a module may be its layers: each waits for the one
before, and has weights of its own. More than a model has layers are a loop. Of kernels that come once, fusing
leaves a part.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import Saving
from profiling_lab.rules.small_grids import filled
from profiling_lab.rules.view import F64, Mask, View
from profiling_lab.trace.columns import I32, I64, numbered
from profiling_lab.trace.stacks import Stacks

FUSED = 0.3
"""of kernels that come once, what fusing leaves"""
_MOST_LAYERS = 128
"""of a model: Llama 3.1 405B has 126. What comes more often is a loop"""
_MODULE, _CALL = ("torch/nn/modules/module.py",), ("_call_impl",)


def batched(view: View, rows: I64, fused: float, least: float, over_waits: bool) -> Saving:
    """fused: the part that fusing leaves. least: that which waits of the host leave. over_waits: those of the
    loop go with it.
    """
    times = _times_in_a_row(view, rows, over_waits)
    gpu = np.maximum(filled(view)[rows], 1 / times)
    return Saving(rows, np.maximum(fused * gpu, least), np.maximum(fused / times, least))


def _times_in_a_row(view: View, rows: I64, over_waits: bool) -> F64:
    """Per row how often its name comes among these until its thread launches another kernel, until the host
    waits, or until the step ends; in a module at most as often as its line does for each time that the module
    does, or for each layer. 1 where steps or launches are unknown.
    """
    times = np.ones(len(view.operations))
    if view.steps is None:
        return times[rows]
    mine = np.zeros(len(view.operations), dtype=bool)
    mine[rows] = True
    call, place = view.attribution.call, view.operation_place
    launched = np.flatnonzero(view.has_call & (mine | view.kernels))
    start_ns, thread = view.calls.start_ns[call[launched]], view.calls.thread[call[launched]]
    order = np.lexsort((start_ns, thread))
    launched, start_ns, thread = launched[order], start_ns[order], thread[order]
    step = np.searchsorted(np.sort(view.steps.host_start_ns), start_ns, "right")
    waited = np.searchsorted(np.sort(view.calls.end_ns[view.waits]), start_ns, "right")
    same = np.stack([thread, step, waited * (not over_waits), mine[launched]])
    run = np.cumsum(np.append(True, (np.diff(same) != 0).any(axis=0))[: len(launched)])
    times[launched] = _count(numbered(run, view.operations.name[launched]))
    module = _in_modules(view.trace.stacks, view.own_row)[view.attribution.stack[launched]]
    launched, step, thread = launched[module], step[module], thread[module]
    line = numbered(thread, step, place[launched])
    count = _count(numbered(line, view.operations.name[launched]))
    of_line = _most(count, line)
    of_module = -_most(-of_line, numbered(thread, step, view.function_of_line[place[launched]]))
    mean = _count(line) / _sum(1 / count, line)  # of the line's kernels
    loops = np.maximum(of_line / of_module, mean / _MOST_LAYERS)
    times[launched] = np.minimum(times[launched], loops)
    return times[rows]


def _count(number: I32) -> I64:
    """Per row how many have the same number."""
    return np.bincount(number)[number]


def _sum(value: F64, number: I32) -> F64:
    """Per row the sum over those with the same number."""
    return np.asarray(np.bincount(number, weights=value)[number], dtype=np.float64)


def _most(value: I64, number: I32) -> I64:
    """Per row the largest value of those with the same number."""
    most = np.full(int(number.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(most, number, value)
    return most[number]


def _in_modules(stacks: Stacks, own_row: I32) -> Mask:
    """Per stack, whether its own line is in a module that was called as one."""
    calls = stacks.passes_through(_MODULE, _CALL)
    caller = stacks.parent[own_row]
    return np.asarray((calls[caller] > 0) & (own_row[calls[caller]] == own_row[caller]))
