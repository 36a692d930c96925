# SPDX-License-Identifier: Apache-2.0
"""Select a part of a trace: a time interval, steps, NVTX ranges, ranks, devices."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import FARTHEST_NS, unique
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.source import Tables
from profiling_lab.trace.spans import Spans, Window
from profiling_lab.trace.step_windows import launched_spans, step_windows

_TIME = re.compile(r"^\s*(\d+(?:\.\d*)?|\.\d+)\s*(s|ms|us|µs|ns)\s*$")
_UNITS_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "µs": 1_000, "ns": 1}
_NVTX = re.compile(r"^(?P<name>.+?)(?:@(?P<domain>[^@/]*))?(?:/(?P<number>-?\d+))?$", re.DOTALL)
_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class WindowSelection:
    """The selection, as in the command line options; None and () mean not given."""

    range: str | None = None
    """`A:B`, times such as 1.2s or 350ms after the first event; either may be omitted"""
    step: str | None = None
    """`N` or `A:B`, counted from 0, negative from the end; B is not included"""
    nvtx: str | None = None
    """`NAME[@DOMAIN][/I]`: the name of ranges or a regular expression for all of it, and which instance,
    counted from 0, negative from the end; all of them without"""
    ranks: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    """CUDA ordinals in their process"""
    steps_by: str | None = None
    """see `step_windows`; defines the steps, but selects nothing by itself"""

    def __bool__(self) -> bool:
        given = (self.range, self.step, self.nvtx)
        return any(text is not None for text in given) or bool(self.ranks or self.devices)


def window(trace: Tables, wanted: WindowSelection) -> Window:
    """Find the window; several conditions select their intersection.

    Raises UsageError for invalid texts and for steps, instances, ranks and devices that do not exist,
    NotEnoughDataError if the trace has neither a GPU operation nor a sample, no such range or no steps.
    """
    processes = _processes(trace)
    if not processes:
        raise NotEnoughDataError(trace.why_empty())
    texts: list[str] = []
    operations = trace.operations
    host = _always(processes)
    gpu = host
    if len(operations):
        # An empty operation at the end of the recording would otherwise be outside.
        gpu = _everywhere(processes, int(operations.start_ns.min()), int(operations.end_ns.max()) + 1)
    for part in (
        _range(trace, wanted.range, processes) if wanted.range is not None else None,
        _steps(trace, wanted.step, wanted.steps_by) if wanted.step is not None else None,
        _nvtx(trace, wanted.nvtx, processes) if wanted.nvtx is not None else None,
        _ranks(trace, wanted.ranks) if wanted.ranks else None,
    ):
        if part is not None:
            texts.append(part[0])
            host, gpu = host.intersect(part[1]), gpu.intersect(part[2])
    if wanted.devices:
        there = sorted(set(trace.operations.device.tolist()))
        _all_there("device", wanted.devices, there)
        texts.append(f"device {_listed(wanted.devices)}")
    asked = {
        "range": wanted.range,
        "step": wanted.step,
        "nvtx": wanted.nvtx,
        "rank": _listed(wanted.ranks),
        "device": _listed(wanted.devices),
    }
    return Window(
        text="; ".join(texts),
        asked=tuple((name, value) for name, value in asked.items() if value),
        host=host,
        gpu=gpu,
        devices=tuple(sorted(set(wanted.devices))),
    )


_Part = tuple[str, Spans, Spans]  # text, host, GPU


def _processes(trace: Tables) -> tuple[int, ...]:
    """The processes that used a GPU; in a recording without any GPU operation those that were sampled."""
    used = trace.operations.process
    return tuple(unique(used if len(used) else trace.samples(Ownership()).process).tolist())


def _always(processes: tuple[int, ...]) -> Spans:
    return _everywhere(processes, -FARTHEST_NS, FARTHEST_NS)


def _everywhere(processes: tuple[int, ...], start_ns: int, end_ns: int) -> Spans:
    size = len(processes)
    return Spans.of(
        np.array(processes, dtype=np.int32),
        np.full(size, start_ns, dtype=np.int64),
        np.full(size, end_ns, dtype=np.int64),
    )


def _range(trace: Tables, text: str, processes: tuple[int, ...]) -> _Part:
    opens, colon, closes = text.partition(":")
    if not colon or ":" in closes:
        raise UsageError(f"--range expects two times, such as 1.2s:1.35s or 350ms:, not {text!r}")
    zero = trace.first_ns
    start_ns = zero + _time_ns(opens, text) if opens.strip() else -FARTHEST_NS
    end_ns = zero + _time_ns(closes, text) if closes.strip() else FARTHEST_NS
    if end_ns <= start_ns:
        raise UsageError(f"--range {text} ends before it begins")
    spans = _everywhere(processes, start_ns, end_ns)
    return f"{opens.strip() or 'the start'} to {closes.strip() or 'the end'}", spans, spans


def moment(text: str) -> int:
    """A time after the first event, in ns. Raises UsageError."""
    if text.strip() != "0" and _TIME.match(text) is None:
        raise UsageError(f"--at expects peak, end, or a time such as 1.5s, 350ms or 10us, not {text!r}")
    return _time_ns(text, text)


def _time_ns(text: str, whole: str) -> int:
    if text.strip() == "0":
        return 0
    match = _TIME.match(text)
    if match is None:
        raise UsageError(f"--range expects times such as 1.2s, 350ms, 10us or 5ns, not {text!r} in {whole!r}")
    return min(round(float(match[1]) * _UNITS_NS[match[2]]), FARTHEST_NS)


def _steps(trace: Tables, text: str, steps_by: str | None) -> _Part:
    wanted = _index(text)
    if not len(trace.operations):
        raise NotEnoughDataError(
            f"{trace.why_empty()}; steps are those of GPU work, --range and --nvtx select a part without"
        )
    found = step_windows(trace, steps_by)
    if found.sign == "window":
        raise NotEnoughDataError(
            f"{trace.path} has no steps to choose from; "
            "--steps-by defines steps by range names, --range and --nvtx select a part without steps"
        )
    rows: list[int] = []
    most = 0
    for process in unique(found.process).tolist():
        mine = np.flatnonzero(found.process == process)
        most = max(most, len(mine))
        rows += mine[wanted].tolist() if isinstance(wanted, slice) else _one(mine.tolist(), wanted)
    if not rows:
        raise UsageError(f"--step {text}: the trace has {most} steps, 0 to {most - 1} ({found.how})")
    steps = found.only(np.array(rows))
    names = dict.fromkeys(steps.names)
    first, last = next(iter(names)), next(reversed(names))
    shown = first if len(names) == 1 else f"{first} to {last}"
    shown = f" (the program's {shown})" if steps.are_named else ""
    host = Spans.of(steps.process, steps.host_start_ns, steps.host_end_ns)
    gpu = Spans.of(steps.process, steps.start_ns, steps.end_ns)
    return f"step {text} of 0 to {most - 1}{shown}", host, gpu


def _index(text: str) -> int | slice:
    """`3` or `-2:`, as in Python."""
    parts = text.split(":")
    try:
        numbers = [int(part) if part.strip() else None for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) == 1 and numbers[0] is not None:
        return numbers[0]
    if len(numbers) == 2:
        return slice(*numbers)
    raise UsageError(f"--step expects a number or two, such as 3, -1 or 2:5, not {text!r}")


def _one(values: list[int], index: int) -> list[int]:
    return [values[index]] if -len(values) <= index < len(values) else []


def _nvtx(trace: Tables, text: str, processes: tuple[int, ...]) -> _Part:
    name, domain, number = _wanted_ranges(trace, text)
    ranges = trace.ranges
    hits = _matching(trace.ranges.names, name, text)
    rows = np.flatnonzero(hits[ranges.name] & np.isin(ranges.process, processes))
    if domain is not None:
        ids = [i for i, known in ranges.domains.items() if known == domain]
        rows = rows[np.isin(ranges.domain[rows], ids)]
    rows = rows[ranges.start_ns[rows] > -FARTHEST_NS]
    if not len(rows):
        where = "" if domain is None else f" of the domain {domain!r}"
        raise NotEnoughDataError(f"{trace.path} has no range named {name!r}{where}{_names(trace)}")
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    if number is not None:
        each = [rows[ranges.process[rows] == process].tolist() for process in processes]
        rows = np.array([row for mine in each for row in _one(mine, number)], dtype=np.intp)
        if not len(rows):
            most = max(map(len, each))
            raise UsageError(f"--nvtx {text}: the trace has {most} ranges {name!r}, 0 to {most - 1}")
    # A range that was still open ends with the recording.
    ends = trace.operations.end_ns if len(trace.operations) else trace.samples(Ownership()).time_ns + 1
    last_ns = max(int(ends.max()), int(ranges.start_ns[rows].max()) + 1)
    host = Spans.of(ranges.process[rows], ranges.start_ns[rows], ranges.end_ns[rows].clip(max=last_ns))
    shown = f"NVTX {text}" + ("" if len(rows) == 1 else f", {len(rows):,} ranges")
    return shown, host, _on_the_gpu(trace, host)


def _wanted_ranges(trace: Tables, text: str) -> tuple[str, str | None, int | None]:
    """Name, domain and number. An existing range name is not split."""
    match = _NVTX.match(text)
    if text in trace.ranges.names or match is None:
        return text, None, None
    name, domain = match["name"], match["domain"]
    if domain is not None and f"{name}@{domain}" in trace.ranges.names:
        name, domain = f"{name}@{domain}", None
    return name, domain, int(match["number"]) if match["number"] else None


def _matching(names: tuple[str, ...], name: str, text: str) -> np.ndarray:
    if name in names:
        return np.array([known == name for known in names], dtype=bool)
    try:
        pattern = re.compile(name)
    except re.error as error:
        raise UsageError(f"--nvtx expects a name or a regular expression, not {text!r}: {error}") from None
    return np.array([bool(pattern.fullmatch(known)) for known in names] or [False], dtype=bool)


def _names(trace: Tables) -> str:
    names = Counter({trace.ranges.names[i]: n for i, n in enumerate(np.bincount(trace.ranges.name)) if n})
    if not names:
        return "; it has no ranges"
    listed = ", ".join(repr(name) for name, _ in names.most_common(_NAMES_SHOWN))
    return f"; it has {listed}" + (" and others" if len(names) > _NAMES_SHOWN else "")


def _on_the_gpu(trace: Tables, host: Spans) -> Spans:
    """Map host intervals to the GPU time of their launched work. Intervals without launches do not change."""
    if not len(trace.operations):
        return host
    start_ns, end_ns = host.start_ns.copy(), host.end_ns.copy()
    for process in unique(host.process).tolist():
        mine = host.process == process
        first, last, _ = launched_spans(trace, process, host.start_ns[mine], host.end_ns[mine])
        ran = last > first
        start_ns[mine] = np.where(ran, first, start_ns[mine])
        end_ns[mine] = np.where(ran, last, end_ns[mine])
    return Spans.of(host.process, start_ns, end_ns)


def _ranks(trace: Tables, wanted: tuple[int, ...]) -> _Part:
    known, noted = ranks(trace)
    _all_there("rank", wanted, sorted(known))
    chosen = tuple(sorted(known[rank] for rank in set(wanted)))
    pids = _listed(tuple(trace.pids[process] for process in chosen))
    how = (
        "stored by the recorder"
        if noted
        else ("ranks in order of process id: the file does not contain them")
    )
    return f"rank {_listed(wanted)} (pid {pids}; {how})", _always(chosen), _always(chosen)


def ranks(trace: Tables) -> tuple[dict[int, int], bool]:
    """The process of each rank, and whether the recorder stored it; else ranks are in order of process id."""
    processes = sorted(_processes(trace), key=lambda number: trace.pids[number])
    noted = str(trace.job_facts.get("rank", ""))
    if noted.isdecimal() and len(processes) == 1:
        return {int(noted): processes[0]}, True
    merged = {
        int(rank): process
        for process in processes
        if (rank := trace.process_facts.get(trace.pids[process], {}).get("rank", "")).isdecimal()
    }
    if processes and len(merged) == len(processes):
        return merged, True
    return dict(enumerate(processes)), False


def _all_there(what: str, wanted: tuple[int, ...], there: list[int]) -> None:
    for number in wanted:
        if number not in there:
            raise UsageError(f"--{what} {number}: the trace has {what} {_listed(tuple(there))}")


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
