# SPDX-License-Identifier: Apache-2.0
"""`profiling_lab.open`: every table of the command line about a trace, one call each.

trace = profiling_lab.open("run.sqlite")
trace.lines(by="function").to_pandas()

A keyword is the option of the same name. `lines --tree`, `--host` and `apis --launch` are other methods.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from profiling_lab.api.arguments import (
    Names,
    Numbers,
    StrPath,
    Thresholds,
    chosen_rules,
    names_of,
    one_of,
    paths_of,
    rows_of,
    selection,
)
from profiling_lab.api.table import Table
from profiling_lab.errors import UsageError
from profiling_lab.trace import Trace

if TYPE_CHECKING:
    from profiling_lab.analysis.apis import ApisResult
    from profiling_lab.analysis.copies import By as CopiesBy
    from profiling_lab.analysis.copies import CopiesResult
    from profiling_lab.analysis.counters.by_line import CountersResult
    from profiling_lab.analysis.critical_path.critical_path import CriticalPath, PathChain, Predictions
    from profiling_lab.analysis.energy.result import EnergyResult
    from profiling_lab.analysis.flame import CallTree
    from profiling_lab.analysis.gaps.gaps import GapsResult
    from profiling_lab.analysis.gaps.longest import GapList
    from profiling_lab.analysis.info import TraceInfo
    from profiling_lab.analysis.kernels.groups import GroupBy
    from profiling_lab.analysis.kernels.kernels import KernelsResult
    from profiling_lab.analysis.kernels.launches import LaunchesResult
    from profiling_lab.analysis.lines import LinesResult, PhaseFilter, Sort
    from profiling_lab.analysis.lines_groups import By as LinesBy
    from profiling_lab.analysis.lines_host import HostLinesResult, HostSort
    from profiling_lab.analysis.memory.growth import GrowthResult
    from profiling_lab.analysis.memory.memory import By as MemoryBy
    from profiling_lab.analysis.memory.memory import MemoryResult
    from profiling_lab.analysis.memory.timeline import TimelineResult
    from profiling_lab.analysis.ncu.join import NcuResult
    from profiling_lab.analysis.overlap.overlap import OverlapResult
    from profiling_lab.analysis.overlap.streams import StreamsResult
    from profiling_lab.analysis.ranges.ranges import RangesResult
    from profiling_lab.analysis.roofline.roofline import By as RoofBy
    from profiling_lab.analysis.roofline.roofline import RooflineResult
    from profiling_lab.analysis.steps import StepsResult
    from profiling_lab.analysis.syncs import SyncsResult
    from profiling_lab.rules import Checked, Rule

GapsBy = Literal["cause", "gap"]
OverlapBy = Literal["class", "stream", "pair"]
NcuPhase = Literal["forward", "backward", "recompute", "optimizer", "all"]


def open(
    path: StrPath,
    *,
    own: StrPath | Iterable[StrPath] = (),
    range: str | None = None,
    step: int | str | None = None,
    nvtx: str | None = None,
    rank: Numbers | None = None,
    device: Numbers | None = None,
    steps_by: str | None = None,
) -> TraceTables:
    """Open a recording, an nsys export (SQLite or a folder of Parquet files), torch.profiler's JSON, an
    XPlane file of JAX, or a database (rocpd) or JSON of rocprofv3.

    own: files and folders that are your code (default: everything outside site-packages, the standard library
    and torch). steps_by: a regular expression for the ranges that are steps. range, step, nvtx, rank, device:
    the part of the trace to look at, such as range="1.2s:1.35s", step=2, step="2:5", nvtx="forward".

    The file is only read. Raises UnreadableInputError if it does not exist or is not a trace, UsageError and
    NotEnoughDataError for a part that it does not have, UsageError if a path of own names no file of it.
    """
    from profiling_lab.analysis.own_files import check_own

    trace = Trace.open(os.fspath(path))
    try:
        check_own(paths_of(own), [trace])
        part = trace.windowed(selection(range, step, nvtx, rank, device, steps_by))
        return TraceTables(part, own=own, steps_by=steps_by)
    except BaseException:
        trace.close()
        raise


class TraceTables:
    """The tables of a trace, or of a part of it. Use it in a `with` statement, or close() it at the end.

    `limit` is the most rows, by default all. Every table raises UsageError for a wrong argument and
    NotEnoughDataError where the trace does not hold what the table is made of.
    """

    def __init__(
        self, trace: Trace, *, own: StrPath | Iterable[StrPath] = (), steps_by: str | None = None
    ) -> None:
        self.trace = trace
        """the columns of the file, as arrays"""
        self.own = paths_of(own)
        self.steps_by = steps_by

    def __enter__(self) -> TraceTables:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, also for other parts of the same trace."""
        self.trace.close()

    def __repr__(self) -> str:
        window = self.trace.window
        return f"<TraceTables of {self.trace.path}{f', {window.text}' if window else ''}>"

    def window(
        self,
        *,
        range: str | None = None,
        step: int | str | None = None,
        nvtx: str | None = None,
        rank: Numbers | None = None,
        device: Numbers | None = None,
    ) -> TraceTables:
        """A part of the whole trace, without reading the file again; the arguments are those of `open`."""
        wanted = selection(range, step, nvtx, rank, device, self.steps_by)
        return TraceTables(self.trace.whole.windowed(wanted), own=self.own, steps_by=self.steps_by)

    def info(self) -> Table[TraceInfo]:
        """What the file contains, how it was captured, and how to record what is missing."""
        from profiling_lab.analysis.coverage import coverage
        from profiling_lab.analysis.info import info
        from profiling_lab.report.info import info_report
        from profiling_lab.trace.ownership import Ownership

        trace, result = self.trace, info(self.trace)
        own_row = trace.stacks.own_rows(Ownership(self.own))
        covered = coverage(trace, own_row) if len(trace.operations) else None
        return Table(info_report(trace, result, covered), result)

    def lines(
        self,
        by: LinesBy = "line",
        *,
        phase: PhaseFilter = "all",
        sort: Sort = "all",
        depth: int | None = None,
        limit: int | None = None,
    ) -> Table[LinesResult]:
        """GPU time per line of your Python code: forward, backward, recomputed, optimizer.

        depth: group by this many of the innermost own frames.
        """
        from profiling_lab.analysis.lines import lines
        from profiling_lab.report.lines.lines import lines_report

        result = lines(self.trace, by, phase, self.own, depth, rows_of(limit), sort)
        return Table(lines_report(self.trace, result), result)

    def call_tree(
        self,
        *,
        phase: PhaseFilter = "all",
        depth: int | None = None,
        min_share: float = 0.005,
        limit: int | None = None,
    ) -> Table[CallTree]:
        """The calls of your code, each with the GPU time of its callees: `lines --tree`.

        depth: the most levels. min_share: leaves out calls with less than this fraction of the GPU time.
        """
        from profiling_lab.analysis.flame import call_tree
        from profiling_lab.report.lines.tree import tree_report

        result = call_tree(self.trace, phase, self.own, depth, rows_of(limit), min_share)
        return Table(tree_report(self.trace, result), result)

    def host_lines(
        self,
        by: LinesBy = "line",
        *,
        sort: HostSort = "all",
        depth: int | None = None,
        limit: int | None = None,
    ) -> Table[HostLinesResult]:
        """Host time per line of your Python code, from samples of its stacks: `lines --host`.

        The recording needs samples (`record --sample-python`) and no GPU operation.
        """
        from profiling_lab.analysis.lines_host import host_lines
        from profiling_lab.report.lines.host import host_lines_report

        result = host_lines(self.trace, by, self.own, depth, rows_of(limit), sort)
        return Table(host_lines_report(self.trace, result), result)

    def kernels(
        self,
        group_by: GroupBy = "name",
        *,
        stats: bool = False,
        phases: bool = False,
        occupancy: bool = False,
        totals: bool = False,
        stacks: int = 3,
        depth: int = 4,
        limit: int | None = None,
    ) -> Table[KernelsResult]:
        """The most expensive kernels and copies, each with the Python frames that launched it.

        totals: only times and counts, without reading calls and stacks. stacks, depth: shown below each row.
        """
        from profiling_lab.analysis.kernels.kernels import top_kernels
        from profiling_lab.report.kernels.kernels import kernels_report

        result = top_kernels(
            self.trace, rows_of(limit), self.own, group_by, phases, occupancy, lines=not totals
        )
        report = kernels_report(self.trace, result, stacks if depth > 0 else 0, depth, stats)
        return Table(report, result)

    def apis(self, *, lines: int = 2, limit: int | None = None) -> Table[ApisResult]:
        """The time in CUDA API calls, by function. lines: shown below each row."""
        from profiling_lab.analysis.apis import apis
        from profiling_lab.report.apis import apis_report

        result = apis(self.trace, self.own, rows_of(limit))
        return Table(apis_report(self.trace, result, lines), result)

    def launches(self, *, lines: int = 2, limit: int | None = None) -> Table[LaunchesResult]:
        """Kernels by the call and thread that launched them, with the phases of a launch: `apis --launch`."""
        from profiling_lab.analysis.kernels.launches import launches
        from profiling_lab.report.kernels.launches import launches_report

        result = launches(self.trace, self.own, rows_of(limit))
        return Table(launches_report(self.trace, result, lines), result)

    def copies(
        self,
        by: CopiesBy = "line",
        *,
        peak: float | None = None,
        lines: int = 2,
        limit: int | None = None,
    ) -> Table[CopiesResult]:
        """Copies and memsets: time, size and bandwidth by direction, kind of memory and line.

        peak: the peak bandwidth between host and GPU in GB/s, where you know it.
        """
        from profiling_lab.analysis.copies import copies
        from profiling_lab.report.copies import copies_report

        if peak is not None and not 0 < peak < 1e6:
            raise UsageError(f"peak must be in GB/s, such as 55, not {peak}")
        bytes_per_s = None if peak is None else round(peak * 1e9)
        result = copies(self.trace, by, self.own, rows_of(limit), bytes_per_s)
        return Table(copies_report(self.trace, result, lines), result)

    def memory(
        self, by: MemoryBy = "line", *, at: str = "peak", lines: int = 2, limit: int | None = None
    ) -> Table[MemoryResult]:
        """What held GPU memory: allocations alive at one moment, by line or by kind.

        The file is a recording with `record --memory` or a memory snapshot of torch. at: "peak", "end", or a
        time after the first event, such as "1.5s". lines: shown below each row.
        """
        from profiling_lab.analysis.memory.memory import memory
        from profiling_lab.report.memory import memory_report
        from profiling_lab.trace.window import moment

        when = at if at in ("peak", "end") else moment(at)
        result = memory(self.trace, by, when, self.own, rows_of(limit))  # type: ignore[arg-type]
        return Table(memory_report(self.trace, result, lines), result)

    def memory_growth(self, *, limit: int | None = None) -> Table[GrowthResult]:
        """What lines hold in GPU memory after each step, the most grown first: `memory --growth`."""
        from profiling_lab.analysis.memory.growth import growth
        from profiling_lab.report.memory import growth_report

        result = growth(self.trace, self.own, self.steps_by, rows_of(limit))
        return Table(growth_report(self.trace, result), result)

    def memory_timeline(self, intervals: int = 40) -> Table[TimelineResult]:
        """Allocated and reserved GPU memory over time: `memory --timeline`."""
        from profiling_lab.analysis.memory.timeline import timeline
        from profiling_lab.report.memory import timeline_report

        result = timeline(self.trace, intervals)
        return Table(timeline_report(self.trace, result), result)

    def roofline(
        self,
        by: RoofBy = "line",
        *,
        peaks: StrPath | None = None,
        limit: int | None = None,
    ) -> Table[RooflineResult]:
        """FLOPs, bytes and rates against what the GPU could do, of the step whose work was counted.

        peaks: a file that `profiling-lab peaks -o` wrote (default: what was measured on this machine for the
        same GPU, else the vendor's figures).
        """
        from profiling_lab.analysis.roofline.peaks import peaks_of
        from profiling_lab.analysis.roofline.roofline import gpu_name, roofline
        from profiling_lab.report.roofline.table import roofline_report

        rates = peaks_of(gpu_name(self.trace), peaks)
        result = roofline(self.trace, rates, by, self.own, rows_of(limit))
        return Table(roofline_report(self.trace, result), result)

    def ncu(
        self, line: str, report: StrPath, *, phase: NcuPhase = "all", launches: int | None = None
    ) -> Table[NcuResult]:
        """What a report of Nsight Compute (its raw page as CSV, or an .ncu-rep where ncu is installed) says
        of the kernels that a line such as "model.py:87" launched. launches: as for the command.
        """
        from profiling_lab.analysis.ncu.join import join
        from profiling_lab.analysis.ncu.plan import plan
        from profiling_lab.analysis.ncu.report import read
        from profiling_lab.report.kernels.ncu import ncu_report

        one_of("phase", phase, NcuPhase)
        found = read(Path(report))
        result = join(plan(self.trace, line, self.own, phase, launches), found)
        return Table(ncu_report(self.trace, result, found.source), result)

    def counters(self, *, limit: int | None = None) -> Table[CountersResult]:
        """Memory traffic and busy units by line, from the samples of `record --counters`."""
        from profiling_lab.analysis.counters.by_line import counters_by_line
        from profiling_lab.report.counters import counters_report

        rows = counters_by_line(self.trace, self.own, rows_of(limit))
        return Table(counters_report(self.trace, rows), rows)

    def energy(self, *, samples_per_step: int | None = None, limit: int | None = None) -> Table[EnergyResult]:
        """Joules per step and by line, with error bars. The recording needs `record --energy`.

        samples_per_step: how many samples a step works on, for the joules of one.
        """
        from profiling_lab.analysis.energy.energy import energy
        from profiling_lab.report.energy import energy_report

        result = energy(self.trace, samples_per_step, self.own, self.steps_by, rows_of(limit))
        return Table(energy_report(self.trace, result), result)

    def syncs(self, *, limit: int | None = None) -> Table[SyncsResult]:
        """Where the host waits for the GPU, by line, and the GPU's idle time afterwards."""
        from profiling_lab.analysis.syncs import syncs
        from profiling_lab.report.syncs import syncs_report

        result = syncs(self.trace, self.own, rows_of(limit))
        return Table(syncs_report(self.trace, result), result)

    def ranges(
        self,
        *,
        tree: bool = False,
        merge_numbers: bool = False,
        stats: bool = False,
        lines: int = 2,
        limit: int | None = None,
    ) -> Table[RangesResult]:
        """NVTX ranges, or operators: their time on the host and on the GPU.

        tree: nested. merge_numbers: names that differ only in numbers are one row.
        """
        from profiling_lab.analysis.ranges.ranges import ranges
        from profiling_lab.report.ranges import ranges_report

        result = ranges(self.trace, tree, merge_numbers, self.own, rows_of(limit))
        return Table(ranges_report(self.trace, result, lines, stats), result)

    def streams(self, *, lines: int = 2, limit: int | None = None) -> Table[StreamsResult]:
        """The streams of each GPU: busy, idle and overlapped time, and the lines that launch into them."""
        from profiling_lab.analysis.overlap.streams import streams
        from profiling_lab.report.streams import streams_report

        result = streams(self.trace, self.own, rows_of(limit))
        return Table(streams_report(self.trace, result, lines), result)

    def steps(self, *, host: bool = False, limit: int | None = None) -> Table[StepsResult]:
        """The time of each step: compute, communication, copies, idle. host: also what the host did."""
        from profiling_lab.analysis.steps import steps
        from profiling_lab.report.steps import steps_report

        result = steps(self.trace, self.steps_by, rows_of(limit), host)
        return Table(steps_report(self.trace, result), result)

    def critical_path(
        self, *, segments: bool = False, what_if: Names = (), limit: int | None = None
    ) -> Table[CriticalPath | PathChain | Predictions]:
        """What sets the length of the median step, by line, with what a step would gain without each of them.

        segments: the path in order of time instead. what_if: instead, the step with changes, such as
        "model.py:87=0.5", "gemm=0" for kernels of this name, "copy=0" for a kind, or "all".
        """
        from profiling_lab.analysis.critical_path.critical_path import PathOfStep
        from profiling_lab.report.critical_path import chain_report, path_report, what_if_report

        changes = [what_if] if isinstance(what_if, str) else list(what_if)
        if segments and changes:
            raise UsageError("expected segments or what_if, not both")
        found = PathOfStep(self.trace, self.steps_by, self.own)
        most = rows_of(limit)
        if changes:
            predictions = found.what_if(changes, most)
            result = found.by_line(None, gains=False)
            return Table(what_if_report(self.trace, result, predictions), predictions)
        if segments:
            chain = found.chain(most)
            return Table(chain_report(self.trace, found.by_line(None, gains=False), chain), chain)
        result = found.by_line(most)
        return Table(path_report(self.trace, result), result)

    def gaps(self, by: GapsBy = "cause", *, limit: int | None = None) -> Table[GapsResult | GapList]:
        """Why the GPU was idle: a row per cause and line, or per gap. `result` is a GapList for by="gap"."""
        from profiling_lab.analysis.gaps.gaps import gaps
        from profiling_lab.analysis.gaps.longest import longest_gaps
        from profiling_lab.report.gaps import gap_list_report, gaps_report

        one_of("by", by, GapsBy)
        most = rows_of(limit)
        result = gaps(self.trace, self.steps_by, self.own, most)
        if by == "cause":
            return Table(gaps_report(self.trace, result), result)
        listed = longest_gaps(self.trace, self.own, most)
        return Table(gap_list_report(self.trace, result, listed), listed)

    def overlap(self, by: OverlapBy = "class", *, limit: int | None = None) -> Table[OverlapResult]:
        """How copies, compute and communication overlap: by class of operations, by stream, or by pair."""
        from profiling_lab.analysis.overlap.overlap import overlap
        from profiling_lab.analysis.overlap.pairs import overlap_pairs
        from profiling_lab.report.overlap import overlap_report

        one_of("by", by, OverlapBy)
        most = rows_of(limit)
        pairs = overlap_pairs(self.trace) if by == "pair" else ()
        result = overlap(self.trace)
        return Table(overlap_report(self.trace, result, by, most, pairs), result)

    def check(
        self,
        only: Names | None = None,
        *,
        skip: Names = (),
        set: Thresholds = (),
        rules_from: StrPath | Iterable[StrPath] = (),
        whole: bool = False,
        ncu: StrPath | None = None,
        limit: int | None = None,
    ) -> Table[Checked]:
        """The findings: evidence, cost, source line and remedy. `coverage` says which rules could not tell.

        only, skip: names of rules. set: thresholds, such as {"dataloader.share": "10%"}. rules_from: Python
        files with your own rules, which are executed. whole: includes the start-up. ncu: a report of Nsight
        Compute of the same program (its raw page as CSV, or an .ncu-rep where ncu is installed).
        """
        from profiling_lab.analysis.coverage import coverage
        from profiling_lab.analysis.ncu.report import read
        from profiling_lab.report.check import check_report
        from profiling_lab.rules import run
        from profiling_lab.trace.ownership import Ownership

        most = rows_of(limit)
        is_report = self.trace.recorder == "ncu"
        path = self.trace.path if ncu is None and is_report else ncu
        report = read(Path(path)) if path is not None else None
        kinds = {"trace": not is_report, "counters": report is not None}
        rules, settings = chosen_rules(only, skip, set, rules_from, **kinds)
        result = run(self.trace, rules, self.own, settings, self.steps_by, whole, report)
        covered = coverage(self.trace, self.trace.stacks.own_rows(Ownership(self.own)))
        return Table(check_report(self.trace, result, covered, most), result)

    @staticmethod
    def rules(
        rule: str | None = None,
        *,
        set: Thresholds = (),
        rules_from: StrPath | Iterable[StrPath] = (),
    ) -> Table[tuple[Rule, ...]]:
        """The rules of `check` with every threshold and its source; of one rule, what it looks at."""
        from profiling_lab.report.rules import rule_report, rules_report

        result, settings = chosen_rules(None if rule is None else names_of(rule), (), set, rules_from)
        report = rules_report(result, settings) if rule is None else rule_report(result[0], settings)
        return Table(report, result)
