# SPDX-License-Identifier: Apache-2.0
"""Which launches of a report are those of the line: a report's launches against the recorded ones.

ncu ran the program again. Where its launches are the recorded ones, one for one by kernel, grid and block,
they have the recorded line and phase. The recording may have begun later than the program, so any place in it
may be the right one, as long as all that fit say the same. Where none fits, a launch has a line only if every
recorded launch of its kernel and shape has it.
"""

from __future__ import annotations

from collections.abc import Sequence

from profiling_lab.analysis.ncu.consistency import contradictions
from profiling_lab.analysis.ncu.figures import Figures, figures
from profiling_lab.analysis.ncu.plan import PHASES, Plan, Recorded, Signature
from profiling_lab.analysis.ncu.report import Launch, Report
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.records import dataclass


@dataclass(frozen=True, slots=True)
class NcuRow:
    """One kernel of the line in one phase."""

    phase: str
    figures: Figures
    recorded_ns: int
    """GPU time of this kernel, this line and this phase in the whole recording"""
    recorded_launches: int

    @property
    def key(self) -> str:
        return f"{self.phase}:{self.figures.kernel}"


@dataclass(frozen=True, slots=True)
class NcuResult:
    """The kernels of a line, by phase and recorded time."""

    plan: Plan
    rows: tuple[NcuRow, ...]
    profiled: int
    """launches in the report"""
    others: int
    """of these, launches of other lines"""
    unknown: int
    """of these, launches that may be of this line or of another"""
    missing: tuple[str, ...]
    """`phase kernel` of the line, which the report does not have"""
    notes: tuple[str, ...]
    device: str


def join(plan: Plan, report: Report) -> NcuResult:
    """Raises NotEnoughDataError if no launch of the report is known to be the line's."""
    phases, notes = phases_of(plan.launches, report.launches)
    groups: dict[tuple[str, str], list[Launch]] = {}
    for launch, phase in zip(report.launches, phases, strict=True):
        if phase:
            groups.setdefault((phase, launch.function), []).append(launch)
    recorded: dict[tuple[str, str], list[int]] = {}
    for each in plan.launches:
        if each.phase:
            recorded.setdefault((each.phase, each.signature[0]), []).append(each.ns)
    rows = [
        NcuRow(
            phase, figures(found), sum(recorded.get((phase, name), [])), len(recorded.get((phase, name), []))
        )
        for (phase, name), found in groups.items()
    ]
    if not rows:
        there = ", ".join(dict.fromkeys(launch.function for launch in report.launches))
        raise NotEnoughDataError(
            f"no launch of {report.source} is known to be of {plan.file}:{plan.line}, which launched "
            f"{plan.kernels}; the report has {there}"
        )
    order = {name: i for i, name in enumerate(PHASES)}
    return NcuResult(
        plan=plan,
        rows=tuple(sorted(rows, key=lambda row: (order.get(row.phase, 9), -row.recorded_ns, row.key))),
        profiled=len(report.launches),
        others=sum(phase == "" for phase in phases),
        unknown=sum(phase is None for phase in phases),
        missing=tuple(f"{phase} {name}" for phase, name in recorded if (phase, name) not in groups),
        notes=(*notes, *_fewer(plan, report), *contradictions(report)[:1]),
        device=report.launches[0].device,
    )


def _fewer(plan: Plan, report: Report) -> list[str]:
    left = plan.count - len(report.launches)
    if left <= 0:
        return []
    return [
        f"the report has {len(report.launches)} launches of these kernels, {left} fewer than one recorded "
        "step: the program ended earlier than when it was recorded, or the report was made with other options"
    ]


def phases_of(
    recorded: Sequence[Recorded], launches: Sequence[Launch]
) -> tuple[list[str | None], tuple[str, ...]]:
    """Per launch the phase of the line, '' for another line, None where that is not known; and notes."""
    signatures = [(each.function, each.grid, each.block) for each in launches]
    found = _places(recorded, signatures)
    if found:
        phases = [
            first if all(each[i] == first for each in found) else None for i, first in enumerate(found[0])
        ]
        notes = ("the recording repeats in more than one way, so part of the launches has no line",)
        return phases, notes if None in phases else ()
    names = {each.signature[0] for each in recorded}
    by_shape = [_only(recorded, each) for each in signatures]
    strange = sum(each[0] in names and not _known(recorded, each) for each in signatures)
    more = f"; {strange} of them have a shape that was not recorded" if strange else ""
    note = (
        "the program launched other kernels, or in another order, than in the recording, so launches are "
        f"matched by kernel and shape alone{more}"
    )
    return by_shape, (note,)


def _places(recorded: Sequence[Recorded], wanted: Sequence[Signature]) -> list[list[str | None]]:
    """The phases of every part of the recording that is the same, launch for launch."""
    size = len(wanted)
    return [
        [each.phase for each in recorded[start : start + size]]
        for start in range(len(recorded) - size + 1)
        if all(_fits(recorded[start + i], wanted[i]) for i in range(size))
    ]


def _fits(recorded: Recorded, wanted: Signature) -> bool:
    """A recording that has no shapes has the name alone."""
    name, grid, block = recorded.signature
    return name == wanted[0] and (not grid or (grid, block) == wanted[1:])


def _known(recorded: Sequence[Recorded], wanted: Signature) -> bool:
    return any(_fits(each, wanted) for each in recorded)


def _only(recorded: Sequence[Recorded], wanted: Signature) -> str | None:
    """The phase if all recorded launches of this kernel and shape have one, and it is the same."""
    phases = {each.phase for each in recorded if _fits(each, wanted)}
    if not phases:
        return "" if not any(each.signature[0] == wanted[0] for each in recorded) else None
    return phases.pop() if len(phases) == 1 else None
