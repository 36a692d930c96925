# SPDX-License-Identifier: Apache-2.0
"""The tools: one for each command that reads recordings. A client is told signatures and docstrings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Literal

import profiling_lab.api as api
from profiling_lab.analysis.collectives import By as CollectivesBy
from profiling_lab.analysis.copies import By as CopiesBy
from profiling_lab.analysis.diff.rows import By as DiffBy
from profiling_lab.analysis.kernels.groups import GroupBy
from profiling_lab.analysis.lines import PhaseFilter
from profiling_lab.analysis.lines_groups import By as LinesBy
from profiling_lab.analysis.memory.memory import By as MemoryBy
from profiling_lab.analysis.roofline.roofline import By as RoofBy
from profiling_lab.errors import UsageError
from profiling_lab.mcp.compact import USUAL_TOKENS, compact
from profiling_lab.mcp.root import Root
from profiling_lab.report.ranks.ranks import By as RanksBy

INSTRUCTIONS = """\
Recordings of GPU programs by line of Python: profiling-lab's, exports of Nsight Systems, torch.profiler JSON.
Begin with `recordings`, then `check` (what is wrong, its cost, the remedy) and `lines` (where GPU time goes).
`file` is relative to the root folder. `step` ("3", "2:5", "-2:") or `range` ("1.2s:1.35s") select a part.
An answer keeps to about `tokens` tokens; its last line says what was left out.
"""


@dataclass(frozen=True, slots=True)
class Tools:
    """`own`: what counts as the user's code, as for `profiling_lab.open`."""

    root: Root
    own: tuple[str, ...] = ()
    _one_at_a_time: Lock = field(default_factory=Lock)

    def all(self) -> tuple[Callable[..., str], ...]:
        return (
            self.recordings, self.info, self.check, self.rules, self.lines, self.kernels, self.steps,
            self.gaps, self.copies, self.syncs, self.apis, self.ranges, self.streams, self.overlap,
            self.critical_path, self.memory, self.counters, self.energy, self.roofline, self.diff, self.ranks,
            self.collectives,
        )  # fmt: skip

    def recordings(self, tokens: int = USUAL_TOKENS) -> str:
        """The recordings in the root folder, the newest first: name and size."""
        found = self.root.recordings()
        most = max(tokens * 3 // 60, 1)
        lines = [f"{name} | {size}" for name, size in found[:most]]
        lines += [f"left out: {len(found) - most} older ones"] if len(found) > most else []
        return "\n".join(lines)

    def info(self, file: str, tokens: int = USUAL_TOKENS) -> str:
        """What is in a recording: GPUs, driver, time span, processes, and what was not recorded and why."""
        return self._table(file, None, None, tokens, lambda trace: trace.info())

    def check(
        self,
        file: str,
        whole: bool = False,
        step: str | None = None,
        range: str | None = None,
        tokens: int = USUAL_TOKENS,
    ) -> str:
        """Problems, the costliest first: evidence, cost, source line and remedy. whole: with the start-up."""
        return self._table(file, step, range, tokens, lambda trace: trace.check(whole=whole))

    def rules(self, rule: str | None = None, tokens: int = USUAL_TOKENS) -> str:
        """The rules of `check`, or all about one: its question, its thresholds and where they come from."""
        return compact(api.TraceTables.rules(rule).report, tokens)

    def lines(
        self,
        file: str,
        by: LinesBy = "line",
        phase: PhaseFilter = "all",
        step: str | None = None,
        range: str | None = None,
        tokens: int = USUAL_TOKENS,
    ) -> str:
        """GPU time by line of Python, forward and backward."""
        return self._table(file, step, range, tokens, lambda trace: trace.lines(by, phase=phase))

    def kernels(
        self,
        file: str,
        group_by: GroupBy = "name",
        occupancy: bool = False,
        step: str | None = None,
        range: str | None = None,
        tokens: int = USUAL_TOKENS,
    ) -> str:
        """Kernels: time, count, and the stacks that launch them."""
        return self._table(
            file, step, range, tokens, lambda trace: trace.kernels(group_by, occupancy=occupancy, stacks=1)
        )

    def steps(self, file: str, range: str | None = None, tokens: int = USUAL_TOKENS) -> str:
        """Each training step: compute, communication, copies, idle time."""
        return self._table(file, None, range, tokens, lambda trace: trace.steps())

    def gaps(
        self,
        file: str,
        by: Literal["cause", "gap"] = "cause",
        step: str | None = None,
        range: str | None = None,
        tokens: int = USUAL_TOKENS,
    ) -> str:
        """Why the GPU is idle, and the line the host was in. by "gap": the longest gaps, one by one."""
        return self._table(file, step, range, tokens, lambda trace: trace.gaps(by))

    def copies(
        self,
        file: str,
        by: CopiesBy = "line",
        step: str | None = None,
        range: str | None = None,
        tokens: int = USUAL_TOKENS,
    ) -> str:
        """Copies between host and GPU: bytes, bandwidth, pageable or pinned, by line."""
        return self._table(file, step, range, tokens, lambda trace: trace.copies(by))

    def syncs(
        self, file: str, step: str | None = None, range: str | None = None, tokens: int = USUAL_TOKENS
    ) -> str:
        """Where the host waits for the GPU, by line."""
        return self._table(file, step, range, tokens, lambda trace: trace.syncs())

    def apis(
        self, file: str, step: str | None = None, range: str | None = None, tokens: int = USUAL_TOKENS
    ) -> str:
        """CUDA calls: host time and count, with the lines that make them."""
        return self._table(file, step, range, tokens, lambda trace: trace.apis())

    def ranges(
        self,
        file: str,
        tree: bool = False,
        step: str | None = None,
        range: str | None = None,
        tokens: int = USUAL_TOKENS,
    ) -> str:
        """NVTX ranges, or annotations of torch.profiler: GPU and host time. tree: nested."""
        return self._table(
            file, step, range, tokens, lambda trace: trace.ranges(tree=tree, merge_numbers=not tree)
        )

    def streams(
        self, file: str, step: str | None = None, range: str | None = None, tokens: int = USUAL_TOKENS
    ) -> str:
        """What each CUDA stream does, and how busy it is."""
        return self._table(file, step, range, tokens, lambda trace: trace.streams())

    def overlap(
        self,
        file: str,
        by: Literal["class", "stream", "pair"] = "class",
        step: str | None = None,
        range: str | None = None,
        tokens: int = USUAL_TOKENS,
    ) -> str:
        """Whether copies and communication hide behind compute."""
        return self._table(file, step, range, tokens, lambda trace: trace.overlap(by))

    def critical_path(
        self,
        file: str,
        what_if: list[str] | None = None,
        step: str | None = None,
        range: str | None = None,
        tokens: int = USUAL_TOKENS,
    ) -> str:
        """What sets the length of the median step, by line. what_if: the step with changes, such as
        ["model.py:87=0.5"], or ["all"] for each line without its time.
        """
        changes = what_if or ()
        return self._table(file, step, range, tokens, lambda trace: trace.critical_path(what_if=changes))

    def memory(self, file: str, by: MemoryBy = "line", at: str = "peak", tokens: int = USUAL_TOKENS) -> str:
        """What held GPU memory, by line or kind. at: "peak", "end", or a time such as "1.5s". The recording
        needs `record --memory`; memory snapshots of torch are read, too.
        """
        return self._table(file, None, None, tokens, lambda trace: trace.memory(by, at=at))

    def counters(
        self, file: str, step: str | None = None, range: str | None = None, tokens: int = USUAL_TOKENS
    ) -> str:
        """Memory traffic and busy units by line, as sampled; needs `record --counters`."""
        return self._table(file, step, range, tokens, lambda trace: trace.counters())

    def energy(
        self,
        file: str,
        samples_per_step: int | None = None,
        step: str | None = None,
        range: str | None = None,
        tokens: int = USUAL_TOKENS,
    ) -> str:
        """Joules per step and by line, with error bars; needs `record --energy`."""
        return self._table(
            file, step, range, tokens, lambda trace: trace.energy(samples_per_step=samples_per_step)
        )

    def roofline(
        self,
        file: str,
        by: RoofBy = "line",
        step: str | None = None,
        range: str | None = None,
        tokens: int = USUAL_TOKENS,
    ) -> str:
        """FLOPs, bytes and the share of the GPU's roof, by line; needs `record --work`."""
        return self._table(file, step, range, tokens, lambda trace: trace.roofline(by))

    def diff(
        self,
        before: list[str],
        after: list[str],
        by: DiffBy = "line",
        gate: str | None = None,
        memory: bool = False,
        gate_memory: str | None = None,
        allow: list[str] | None = None,
        tokens: int = USUAL_TOKENS,
    ) -> str:
        """Whether a change helped: recordings from before and after it, by line, with confidence intervals.

        gate: the regression that is too much, such as "3%" or "2ms". gate_memory: the same of the peak of GPU
        memory, "5%" or "512MiB". memory: instead of times what was alive at the peaks, by "line" or
        "function". allow: what may differ (gpu, driver, method, window, steps, workload, shapes, overhead).
        """
        sides = self.root.files(before), self.root.files(after)
        if memory and gate is not None:
            raise UsageError("gate is about the times, which memory=true does not compare: leave one out")
        shared: dict[str, Any] = {"own": self.own, "gate_memory": gate_memory, "allow": allow or ()}
        with self._one_at_a_time:
            if memory:
                return compact(api.diff_memory(*sides, by=by, **shared).report, tokens)  # type: ignore[arg-type]
            return compact(api.diff(*sides, by=by, gate=gate, **shared).report, tokens)

    def ranks(self, files: list[str], by: RanksBy = "rank", tokens: int = USUAL_TOKENS) -> str:
        """Which rank of a job the others wait for, in which collective, and its late line."""
        return self._job(files, tokens, lambda paths: api.ranks(paths, by=by, own=self.own))

    def collectives(self, files: list[str], by: CollectivesBy = "line", tokens: int = USUAL_TOKENS) -> str:
        """The collectives of a job: bytes, group, bandwidth, exposed time, by line."""
        return self._job(files, tokens, lambda paths: api.collectives(paths, by=by, own=self.own))

    def _table(
        self,
        file: str,
        step: str | None,
        range: str | None,
        tokens: int,
        table: Callable[[api.TraceTables], api.Table[Any]],
    ) -> str:
        path = self.root.file(file)
        with self._one_at_a_time, api.open(path, own=self.own, step=step, range=range) as trace:
            return compact(table(trace).report, tokens)

    def _job(self, files: list[str], tokens: int, table: Callable[[list[str]], api.Table[Any]]) -> str:
        paths = self.root.files(files)
        with self._one_at_a_time:
            return compact(table(paths).report, tokens)
