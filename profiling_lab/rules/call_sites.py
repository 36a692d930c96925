# SPDX-License-Identifier: Apache-2.0
"""Where a line of your code calls a function of yours, and the operations launched inside of these calls."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.records import dataclass
from profiling_lab.rules.view import View
from profiling_lab.trace import Frame
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I32, I64, unique
from profiling_lab.trace.step_windows import StepWindows

DECORATING, _MODULE = "torch/utils/_contextlib.py", "torch/nn/modules/module.py"
MOSTLY_FRAC = 0.9


@dataclass(frozen=True, slots=True)
class CallSite:
    """All calls of a function from one line, no library between them."""

    caller: Frame
    callee: Frame
    """one of its lines"""
    text: str
    """the caller's line"""
    rows: I64
    """operations launched inside, and backward of what is"""

    @property
    def name(self) -> str:
        """Of the function, as the line says it."""
        return self.callee.function.split(".")[-1]

    @property
    def without_arguments(self) -> bool:
        """`x.f()`, or `x.f` of a property."""
        return re.search(rf"\.{re.escape(self.name)}(\(\)|\b(?!\s*\())", self.text) is not None

    @property
    def is_statement(self) -> bool:
        """Nothing is done with what it returns."""
        return re.fullmatch(rf"[\w.\[\]]*\b{re.escape(self.name)}\(.*\)", self.text) is not None

    @property
    def is_entered(self) -> bool:
        """What it returns is gone through, or is the context of a block."""
        return re.match(r"(async )?(for|with)\b", self.text) is not None

    @property
    def of_a_lambda(self) -> bool:
        return self.caller.function.endswith("<lambda>")

    def same_function(self, other: CallSite) -> bool:
        return (self.callee.file, self.callee.function) == (other.callee.file, other.callee.function)


def call_sites(view: View, least_ns: float, of_modules: bool = False) -> list[CallSite]:
    """Those in which operations of at least `least_ns` were launched, where the text of the line is known.
    of_modules: also calls of an nn.Module's `forward` through the module.
    """
    stacks, own_row, texts = view.trace.stacks, view.own_row, view.trace.source_texts
    outer, called_by = own_row[stacks.parent], without_wrappers(view, of_modules)[stacks.parent]
    function = _numbers([(frame.file, frame.function) for frame in stacks.frames])
    line = _numbers([(frame.file, frame.line) for frame in stacks.frames])
    took_ns = np.bincount(view.attribution.stack, weights=view.operations.duration_ns, minlength=len(stacks))
    within: dict[tuple[int, int], list[int]] = {}
    frames: dict[tuple[int, int], tuple[Frame, Frame]] = {}
    for stack in np.flatnonzero(took_ns).tolist():
        row = int(own_row[stack])
        while (around := int(outer[row])) > 0:
            inner, caller = int(stacks.frame[row]), int(stacks.frame[around])
            # neither recursion, nor the lines of a comprehension, nor what a library calls
            if called_by[row] == around and function[caller] != function[inner]:
                key = int(line[caller]), int(function[inner])
                within.setdefault(key, []).append(stack)
                frames[key] = stacks.frames[caller], stacks.frames[inner]
            row = around
    sites = []
    for key, several in within.items():
        caller_frame, callee = frames[key]
        text = texts.get((caller_frame.file, caller_frame.line), "").strip()
        if text and took_ns[unique(np.array(several))].sum() >= least_ns:
            rows = np.flatnonzero(np.isin(view.attribution.stack, several))
            sites.append(CallSite(caller_frame, callee, text, rows))
    return sites


def without_wrappers(view: View, of_modules: bool) -> I32:
    """Per stack the nearest row, including itself, that is not the wrapper of `@torch.no_grad()` and the
    like, nor that of a module's forward.
    """
    wrappers = (DECORATING, _MODULE) if of_modules else (DECORATING,)
    return view.trace.stacks.nearest(lambda frame: not frame.file.endswith(wrappers))


def _numbers(keys: Sequence[tuple[str, object]]) -> I64:
    """Equal keys get equal numbers; one more for no frame."""
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([*(numbers[key] for key in keys), len(numbers)], dtype=np.int64)


def in_steps(view: View, steps: StepWindows, rows: I64, often: float) -> bool:
    """Whether these operations are launched in at least this part of the whole steps."""
    call = view.attribution.call[rows]
    start_ns, begins_ns = view.calls.start_ns[call[call >= 0]], np.sort(steps.host_start_ns)
    with_it = unique(np.searchsorted(begins_ns, start_ns, "right"))
    return int((with_it > 0).sum()) >= often * (len(steps) - 1)


def in_the_same_steps(view: View, several: Sequence[I64]) -> bool:
    """Whether nearly each step with some of these operations has some of each: so they are no branches."""
    if view.steps is None:
        return False
    begins_ns, found = np.sort(view.steps.host_start_ns), view.attribution
    numbers = []
    for rows in several:
        rows = rows[(found.call[rows] >= 0) & (found.phase[rows] == Phase.FORWARD)]
        start_ns = view.calls.start_ns[found.call[rows]]
        numbers.append(unique(np.searchsorted(begins_ns, start_ns, "right")))
    every = unique(np.concatenate(numbers))
    return all(len(number) >= MOSTLY_FRAC * len(every) for number in numbers)


def in_a_row(view: View, rows: I64) -> Iterator[I64]:
    """These operations in the order of their launches, with each other where their thread launches nothing
    else in between. Operations without a launch are left out.
    """
    call, thread = view.attribution.call, view.calls.thread
    known = np.flatnonzero(view.has_call)
    known = known[np.lexsort((view.calls.start_ns[call[known]], thread[call[known]]))]
    mine = np.isin(known, rows)
    other_thread = np.append(True, np.diff(thread[call[known]]) != 0)[: len(known)]
    run = np.cumsum(other_thread | ~mine, dtype=np.int64)
    for _, each in grouped(known[mine], run[mine]):
        yield each
