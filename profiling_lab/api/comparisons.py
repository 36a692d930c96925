# SPDX-License-Identifier: Apache-2.0
"""Tables about several recordings: before and after a change, and the ranks of a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from profiling_lab.api.arguments import (
    Names,
    Numbers,
    StrPath,
    numbers_of,
    one_of,
    paths_of,
    rows_of,
    selection,
)
from profiling_lab.api.table import Table
from profiling_lab.api.trace_tables import TraceTables
from profiling_lab.errors import UsageError
from profiling_lab.trace import Trace

if TYPE_CHECKING:
    from profiling_lab.analysis.collectives import By as CollectivesBy
    from profiling_lab.analysis.collectives import CollectivesResult
    from profiling_lab.analysis.diff.diff import DiffResult
    from profiling_lab.analysis.diff.measure import Capture
    from profiling_lab.analysis.diff.memory import By as DiffMemoryBy
    from profiling_lab.analysis.diff.memory import MemoryDiff
    from profiling_lab.analysis.diff.rows import By as DiffBy
    from profiling_lab.analysis.ranks import JobResult, Options, Pool
    from profiling_lab.report.ranks.ranks import By as RanksBy

Recording: TypeAlias = StrPath | TraceTables


def diff(
    before: Recording | Iterable[Recording],
    after: Recording | Iterable[Recording],
    *,
    by: DiffBy = "line",
    own: StrPath | Iterable[StrPath] | None = None,
    steps_by: str | None = None,
    gate: str | None = None,
    gate_memory: str | None = None,
    budget: Names = (),
    allow: Names = (),
    limit: int | None = None,
) -> Table[DiffResult]:
    """Compare recordings from before and after a change, line by line, taking noise into account.

    before, after: a recording or several, as files, as baselines of `diff --save`, or opened, which compares
    the part that was opened. own, steps_by: as in `open`, by default those that the recordings were opened
    with. gate: the regression that is too much, such as "3%" or "2ms". gate_memory: the growth of the peak of
    GPU memory that is too much, such as "5%" or "512MiB". budget: limits such as "line:model.py:87<3ms".
    allow: what may differ.

    `result` has the verdict. Raises UsageError, NotEnoughDataError and UnreadableInputError.
    """
    from profiling_lab.analysis.diff.diff import diff as compare
    from profiling_lab.report.diff.diff import diff_report

    most = rows_of(limit)
    with _opened(before, after, own, steps_by) as (sides, paths, steps):
        result = compare(
            *sides,
            by=by,
            own=paths,
            steps_by=steps,
            gate=gate,
            gate_memory=gate_memory,
            budgets=_texts(budget),
            allow=_texts(allow),
        )
    return Table(diff_report(result, most), result)


def diff_memory(
    before: Recording | Iterable[Recording],
    after: Recording | Iterable[Recording],
    *,
    by: DiffMemoryBy = "line",
    own: StrPath | Iterable[StrPath] | None = None,
    gate_memory: str | None = None,
    allow: Names = (),
    limit: int | None = None,
) -> Table[MemoryDiff]:
    """Compare the peaks of GPU memory, and what was alive at them, by line and kind: `diff --memory`.

    before, after, own: as in `diff`; memory snapshots of torch are compared, too. by: "line" or "function".
    gate_memory: the growth that is too much, such as "5%" or "512MiB"; its outcome is in `result.gate`.
    allow: "gpu" where the number of GPUs may differ.

    Raises UsageError, UnreadableInputError, and NotEnoughDataError for a recording without memory.
    """
    from profiling_lab.analysis.diff.memory import diff_memory as compare
    from profiling_lab.report.diff.memory import memory_diff_report

    most = rows_of(limit)
    with _opened(before, after, own, None) as (sides, paths, _):
        result = compare(*sides, by=by, own=paths, gate=gate_memory, allow=_texts(allow))
    return Table(memory_diff_report(result, most), result)


@contextmanager
def _opened(
    before: Recording | Iterable[Recording],
    after: Recording | Iterable[Recording],
    own: StrPath | Iterable[StrPath] | None,
    steps_by: str | None,
) -> Iterator[tuple[list[list[Trace | Capture]], tuple[str, ...], str | None]]:
    """What both sides hold, and the `own` and `steps_by` to go by."""
    from profiling_lab.analysis.own_files import check_own

    given = [_listed(side) for side in (before, after)]
    if own is None and steps_by is None:
        own, steps_by = _as_opened([one for side in given for one in side])
    paths = paths_of(own or ())
    with ExitStack() as opened:
        sides = [[each for one in side for each in _sources(one, paths, steps_by, opened)] for side in given]
        sources = [each for side in sides for each in side]
        traces = [each for each in sources if isinstance(each, Trace)]
        if len(traces) == len(sources):  # a baseline was checked when it was saved
            check_own(paths, traces)
        yield sides, paths, steps_by


def _listed(side: Recording | Iterable[Recording]) -> list[Recording]:
    return list(side) if isinstance(side, Iterable) and not isinstance(side, str) else [side]


def _as_opened(recordings: list[Recording]) -> tuple[tuple[str, ...], str | None]:
    """`own` and `steps_by` of what was opened. Raises UsageError if they differ: lines would not compare."""
    found = {(one.own, one.steps_by) for one in recordings if isinstance(one, TraceTables)} or {((), None)}
    if len(found) > 1:
        raise UsageError(
            "expected all to be opened with the same own and steps_by, or own and steps_by given"
        )
    return found.pop()


def _texts(given: Names) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _sources(
    recording: Recording, own: tuple[str, ...], steps_by: str | None, opened: ExitStack
) -> list[Trace | Capture]:
    """What a recording of one side holds; a baseline may hold several."""
    from profiling_lab.analysis.diff.baseline import is_baseline, load_baseline

    if isinstance(recording, TraceTables):
        return [recording.trace]
    if is_baseline(Path(recording)):
        return [*load_baseline(Path(recording), own, steps_by)]
    return [opened.enter_context(Trace.open(Path(recording)))]


def ranks(
    traces: StrPath | Iterable[StrPath],
    *,
    by: RanksBy = "rank",
    jobs: int = 1,
    dask: str | None = None,
    own: StrPath | Iterable[StrPath] = (),
    steps_by: str | None = None,
    range: str | None = None,
    step: int | str | None = None,
    nvtx: str | None = None,
    rank: Numbers | None = None,
    device: Numbers | None = None,
    limit: int | None = None,
) -> Table[JobResult]:
    """Compare the ranks of a job: which rank and line holds the step up, and what mending that would save.

    traces: the recordings of one job, or a folder of them. jobs: the number of processes that read them.
    dask: the address of a scheduler, or "local", for which a script needs its `if __name__ == "__main__"`,
    because Dask's processes import the main module again. range ... device: as in `open`.

    Files that cannot be used are in `result.failures`, the table is about the others. Raises
    UnreadableInputError where there are none, UsageError, and NotEnoughDataError for fewer than two ranks.
    """
    from profiling_lab.analysis.ranks import ranks as compare
    from profiling_lab.report.ranks.ranks import By, ranks_report

    one_of("by", by, By)
    most = rows_of(limit)
    options = _options(own, steps_by, range, step, nvtx)
    with _pool(jobs, dask) as pool:
        result = compare(_files(traces), options, pool, only=numbers_of(rank), devices=numbers_of(device))
    return Table(ranks_report(result, by, most), result)


def collectives(
    traces: StrPath | Iterable[StrPath],
    *,
    by: CollectivesBy = "line",
    links: StrPath | None = None,
    lines: int = 2,
    jobs: int = 1,
    dask: str | None = None,
    own: StrPath | Iterable[StrPath] = (),
    steps_by: str | None = None,
    range: str | None = None,
    step: int | str | None = None,
    nvtx: str | None = None,
    rank: Numbers | None = None,
    device: Numbers | None = None,
    limit: int | None = None,
) -> Table[CollectivesResult]:
    """The collectives of a job: bytes, group, bandwidth, exposed and hidden time, and their lines.

    traces ... device: as in `ranks`; one rank is enough. links: a file that `profiling-lab interconnect -o`
    wrote, to show what the links reach for the same messages. lines: the most lines under a row of
    the printed table.

    Raises as `ranks`, and NotEnoughDataError where there is no collective.
    """
    from profiling_lab.analysis.collectives import collectives as collected
    from profiling_lab.analysis.collectives.links import load
    from profiling_lab.report.ranks.collectives import collectives_report

    most = rows_of(limit)
    options = _options(own, steps_by, range, step, nvtx)
    measured = load(Path(links)) if links is not None else None
    with _pool(jobs, dask) as pool:
        result = collected(
            _files(traces), by, options, most, pool,
            only=numbers_of(rank), devices=numbers_of(device), links=measured,
        )  # fmt: skip
    return Table(collectives_report(result, lines), result)


def _files(traces: StrPath | Iterable[StrPath]) -> list[str]:
    from profiling_lab.analysis.ranks.reading import files_of

    return files_of(list(paths_of(traces)))


def _options(
    own: StrPath | Iterable[StrPath],
    steps_by: str | None,
    range: str | None,
    step: int | str | None,
    nvtx: str | None,
) -> Options:
    """What is asked of every file of a job."""
    from profiling_lab.analysis.ranks import Options

    return Options(steps_by, paths_of(own), selection(range, step, nvtx, None, None, steps_by) or None)


def _pool(jobs: int, dask: str | None) -> AbstractContextManager[Pool]:
    from profiling_lab.analysis.ranks.pools import LocalPool, dask_pool

    if jobs < 1:
        raise UsageError(f"jobs must be at least 1, not {jobs}")
    return nullcontext(LocalPool(jobs)) if dask is None else dask_pool(dask, jobs)
