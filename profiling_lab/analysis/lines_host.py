# SPDX-License-Identifier: Apache-2.0
"""Host time per line of the program, from samples of its Python stacks: no GPU operation is needed.

A sample says where a thread was at a moment, computing or waiting. It stands for one period of sampling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from profiling_lab.analysis.info import info
from profiling_lab.analysis.lines_groups import NEEDS_STACKS, By, Groups, own_frames, stack_groups
from profiling_lab.analysis.lines_layers import holds_layers
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, median, rows_of, unique
from profiling_lab.trace.extras import HostSamples
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.platform import in_words_of
from profiling_lab.trace.spans import Window
from profiling_lab.trace.stacks import Frame, StackBuilder, Stacks
from profiling_lab.trace.trace import Trace

HostSort: TypeAlias = Literal["all", "inclusive", "key"]
HOST_SORTS: tuple[HostSort, ...] = get_args(HostSort)


@dataclass(frozen=True, slots=True)
class ThreadSamples:
    """How often samples found a thread."""

    thread: str
    samples: int


@dataclass(frozen=True, slots=True)
class HostLineRow:
    """Samples of one line, or of another thing that was asked for: fields it does not have are '' and 0."""

    key: str
    """stable over runs of the same program"""
    function: str
    file: str
    line: int
    samples: int
    """whose innermost own frame is this line"""
    inclusive_samples: int
    """that have this line anywhere in their stack, each once"""
    host_ns: int | None
    """samples times the period; None if the period is unknown"""
    inclusive_ns: int | None
    share_frac: float
    """of all samples with a Python stack"""
    callers: tuple[Frame, ...]
    """the user's frames above this one, innermost first, as many as `depth` asked for"""
    threads: tuple[ThreadSamples, ...]
    """in which the line was sampled, the most often first"""


@dataclass(frozen=True, slots=True)
class HostLinesResult:
    """Rows in the requested order; by default by samples, the most first."""

    rows: tuple[HostLineRow, ...]
    by: By
    total_matched: int
    """rows before `limit`"""
    samples: int
    """with a Python stack, of all threads"""
    without_line: int
    """of them in libraries only"""
    without_stack: int
    """samples of native code, which have no Python stack; no line counts them"""
    period_ns: int | None
    """from one moment of sampling to the next"""
    is_measured: bool
    """the period is the median of the recorded moments: the file does not say the rate"""
    missed_ns: int
    """time of moments in the whole recording at which no sample could be taken: it is in no line"""
    threads: tuple[ThreadSamples, ...]
    """all that have a Python stack, the most often sampled first"""
    window: Window | None

    @property
    def truncated(self) -> bool:
        return self.total_matched > len(self.rows)


def host_lines(
    trace: Trace,
    by: By = "line",
    own: tuple[str, ...] | None = None,
    depth: int | None = None,
    limit: int | None = None,
    sort: HostSort = "all",
) -> HostLinesResult:
    """Count samples by their innermost line in user code. The arguments are those of `lines`.

    Raises UsageError for an unknown `by` or `sort`, and for a part of the trace that is a device;
    NotEnoughDataError if the trace, or its part, holds no sample with a Python stack.
    """
    for name, given, known in (("by", by, NEEDS_STACKS), ("sort", sort, HOST_SORTS)):
        if given not in known:
            raise UsageError(f"{name} of samples must be one of {', '.join(known)}, not {given!r}")
    ownership = Ownership(own or ())
    every, samples = _python_samples(trace, ownership)
    stack, stacks = _tree(samples)
    if by == "layer" and not holds_layers(stacks):
        raise NotEnoughDataError(f"the samples of {trace.path} show no nn.Module: try --by module")
    own_row = stacks.own_rows(ownership)
    grouped = stack_groups(stack, stacks, by, own_row, depth or 1)
    period_ns, is_measured = _period(trace, ownership)
    threads = _thread_names(trace, samples)
    rows = [
        row
        for row in _rows(grouped, samples, threads, period_ns)
        if row.samples or (sort == "inclusive" and row.inclusive_samples)
    ]
    return HostLinesResult(
        rows=tuple(sorted(rows, key=lambda row: _order(row, sort))[:limit]),
        by=by,
        total_matched=len(rows),
        samples=len(samples),
        without_line=int((own_row[stack] == 0).sum()),
        without_stack=len(every) - len(samples),
        period_ns=period_ns,
        is_measured=is_measured,
        missed_ns=_missed(trace) * (period_ns or 0),
        threads=_counted(Counter(samples.thread.tolist()), threads),
        window=trace.window,
    )


class HostStack(NamedTuple):
    """The time of one thread in one stack."""

    number: int
    """of the thread"""
    thread: str
    frames: tuple[Frame, ...]
    """innermost first, () where none is in the user's code"""
    ns: int


def host_stacks(
    trace: Trace, own: tuple[str, ...] | None = None, *, own_only: bool = False
) -> Iterator[HostStack]:
    """Every sampled stack with its time. own_only: without the frames of libraries.

    Raises what `host_lines` raises, NotEnoughDataError also where the period is unknown.
    """
    ownership = Ownership(own or ())
    _, samples = _python_samples(trace, ownership)
    period_ns, _ = _period(trace, ownership)
    if period_ns is None:
        raise NotEnoughDataError(f"{trace.path} does not say how often it was sampled")
    stack, stacks = _tree(samples)
    own_row = stacks.own_rows(ownership)
    names = _thread_names(trace, samples)
    counts = Counter(zip(samples.thread.tolist(), stack.tolist(), strict=True))
    for (thread, row), count in sorted(counts.items()):
        frames = own_frames(stacks, own_row, row) if own_only else stacks.of(row)
        yield HostStack(thread, names[thread], frames, count * period_ns)


def _python_samples(trace: Trace, ownership: Ownership) -> tuple[HostSamples, HostSamples]:
    """All samples, and those that have a Python stack."""
    if trace.window is not None and trace.window.devices:
        raise UsageError("device selects GPU operations, and samples of the host belong to no device")
    every = trace.samples(ownership)
    samples = rows_of(every, every.stack >= 0)
    if not len(samples):
        raise NotEnoughDataError(_why_none(trace))
    return every, samples


def sampled_hint(trace: Trace) -> str:
    """The end of a sentence that says why a table of GPU time is empty: what the samples can show."""
    count = int((trace.whole.samples(Ownership()).stack >= 0).sum())
    return f"; `lines --host` shows its {count:,} samples of Python stacks" if count else ""


def _why_none(trace: Trace) -> str:
    if trace.window is not None and (trace.whole.samples(Ownership()).stack >= 0).any():
        return f"{trace.path} has no sample of a Python stack in this window ({trace.window.text})"
    how = ours = "record with `profiling-lab record --sample-python`"
    if trace.recorder == "nsys":
        found = [what.missing for what in info(trace.whole).recorded if what.key == "python_samples"]
        unread = next((text for text in found if "exported" in text), "")
        how = unread or f"{ours}, or give nsys --python-sampling=true"
    return f"{trace.path} holds no samples of Python stacks: {in_words_of(trace, how)}"


def _tree(samples: HostSamples) -> tuple[I32, Stacks]:
    """Per sample its row in a tree of the sampled stacks."""
    builder = StackBuilder()
    used = unique(samples.stack)
    row = np.zeros(len(samples.stacks), dtype=np.int32)
    row[used] = [builder.add(samples.stacks[i]) for i in used.tolist()]
    return row[samples.stack], builder.build()


def _period(trace: Trace, ownership: Ownership) -> tuple[int | None, bool]:
    """The time from one moment of sampling to the next, and whether it had to be measured."""
    facts = (trace.recorder_facts, *trace.process_facts.values())
    rates = {text for each in facts if (text := each.get("samples_per_second", "")).isdecimal() and int(text)}
    if len(rates) == 1:
        return round(1e9 / int(rates.pop())), False
    samples = trace.whole.samples(ownership)
    between = []
    for thread in unique(samples.thread).tolist():
        mine = (samples.thread == thread) & (samples.stack >= 0)
        between.append(np.diff(unique(samples.time_ns[mine])))
    every = np.concatenate(between) if between else np.empty(0, dtype=np.int64)
    return (int(median(every)), True) if len(every) else (None, True)


def _missed(trace: Trace) -> int:
    numbers = [trace.recorder_facts.get(name, "") for name in ("samples_late", "samples_lost")]
    return sum(int(text) for text in numbers if text.isdecimal())


def _thread_names(trace: Trace, samples: HostSamples) -> dict[int, str]:
    """By number: `7698 python`; also the process where there are several."""
    tids, names, pids = trace.tids, trace.source.thread_names(), trace.pids
    several = len(unique(samples.process)) > 1
    pairs = dict(zip(samples.thread.tolist(), samples.process.tolist(), strict=True))
    out = {}
    for thread, process in pairs.items():
        text = f"{pids[process]}:{tids[thread]}" if several else str(tids[thread])
        out[thread] = f"{text} {names[thread]}" if names.get(thread) else text
    return out


def _counted(counts: Counter[int], names: dict[int, str]) -> tuple[ThreadSamples, ...]:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], names[item[0]]))
    return tuple(ThreadSamples(names[thread], count) for thread, count in ranked)


def _rows(
    grouped: Groups, samples: HostSamples, threads: dict[int, str], period_ns: int | None
) -> list[HostLineRow]:
    inclusive = [0] * len(grouped.labels)
    for labels, count in zip(
        grouped.around, np.bincount(grouped.stack, minlength=len(grouped.around)).tolist(), strict=True
    ):
        for number in labels:
            inclusive[number] += count
    of_thread: list[Counter[int]] = [Counter() for _ in grouped.labels]
    for number, thread in zip(grouped.label.tolist(), samples.thread.tolist(), strict=True):
        if number >= 0:
            of_thread[number][thread] += 1
    out = []
    for label, found, around in zip(grouped.labels, of_thread, inclusive, strict=True):
        count = found.total()
        out.append(
            HostLineRow(
                key=label.key,
                function=label.function,
                file=label.file,
                line=label.line,
                samples=count,
                inclusive_samples=around,
                host_ns=None if period_ns is None else count * period_ns,
                inclusive_ns=None if period_ns is None else around * period_ns,
                share_frac=count / len(samples),
                callers=label.callers,
                threads=_counted(found, threads),
            )
        )
    return out


def _order(row: HostLineRow, sort: HostSort) -> tuple[object, ...]:
    if sort == "key":
        return (row.file or row.key, row.line, row.key)
    first = row.inclusive_samples if sort == "inclusive" else row.samples
    return (-first, -row.samples, row.key)
