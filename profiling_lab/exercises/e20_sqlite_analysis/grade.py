# SPDX-License-Identifier: Apache-2.0
"""Grade E20. Each query runs against the learner's recording, a recording of nsys, and a made one that is new
each time; the right rows are computed from each by the analysis.
"""

from __future__ import annotations

import secrets
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from profiling_lab import _analysis
from profiling_lab.analysis.busy import Busy
from profiling_lab.analysis.copies import copies
from profiling_lab.errors import LabError
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.e20_sqlite_analysis.made import made
from profiling_lab.exercises.e20_sqlite_analysis.queries import QueryError, Rows, rows_of
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, not_checked, passed
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import OperationKind
from profiling_lab.trace.operation_classes import device_tracks

FOLDER = Path(__file__).parent
STARTER = "recorded/starter_h200.sqlite"
OF_NSYS = FOLDER.parent / "e17_python_backtrace" / "recorded" / "nsys_h200.sqlite"
NEEDED = ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME")
GAP_NS = 1_000_000
ROUNDING_FRAC = 1e-3  # of numbers with a fraction; whole numbers must be exact
PLACES = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}


@dataclass(frozen=True, slots=True)
class Query:
    """One query: its columns, and the right rows of a recording."""

    name: str
    key: tuple[str, ...]
    values: tuple[str, ...]
    truth: Callable[[Trace], Rows]

    @property
    def file(self) -> str:
        return f"{self.name}.sql"


def _kernels(trace: Trace) -> Rows:
    operations = trace.operations
    is_kernel = operations.kind == OperationKind.KERNEL
    key = np.where(is_kernel, operations.name, -1).astype(np.int32)
    total, count = _analysis.sum_by_key(key, operations.duration_ns, len(operations.names))
    found: dict[str, list[int]] = {}
    for name, ns, launches in zip(operations.names, total.tolist(), count.tolist(), strict=True):
        if launches:
            row = found.setdefault(name, [0, 0])
            row[0], row[1] = row[0] + launches, row[1] + ns
    return [{"name": name, "launches": row[0], "total_ns": row[1]} for name, row in found.items()]


def _gaps(trace: Trace) -> Rows:
    operations = trace.operations
    track, devices = device_tracks(operations)
    start_ns, end_ns, number, _ = _analysis.gaps_between(operations.start_ns, operations.end_ns, track)
    rows: Rows = []
    for start, end, i in zip(start_ns.tolist(), end_ns.tolist(), number.tolist(), strict=True):
        if end - start > GAP_NS:
            process, device = devices[i]
            rows.append(
                {"pid": trace.pids[process], "device": device, "start_ns": start, "idle_ns": end - start}
            )
    return rows


def _copies(trace: Trace) -> Rows:
    return [
        {
            "kind": _label(row.direction),
            "copies": row.times.count,
            "bytes": row.sizes.total,
            "gb_per_s": row.sizes.total / max(row.times.total, 1),
        }
        for row in copies(trace, by="direction").rows
        if row.direction != "memset"
    ]


def _label(direction: str) -> str:
    """`memcpy HtoD` as nsys labels it."""
    kind = direction.removeprefix("memcpy ")
    ends = [PLACES.get(end, end) for end in kind.removeprefix("UVM ").split("to")]
    return ("Unified " if kind.startswith("UVM ") else "") + "-to-".join(ends)


def _delays(trace: Trace) -> Rows:
    operations, calls, call = trace.operations, trace.calls, trace.attribution.call
    rows = np.flatnonzero((operations.kind == OperationKind.KERNEL) & (call >= 0))
    delay_ns = operations.start_ns[rows] - calls.start_ns[call[rows]]
    thread, process = calls.thread[call[rows]], calls.process[call[rows]]
    found = []
    for number in np.unique(thread).tolist():
        mine = delay_ns[thread == number]
        pid = trace.pids[int(process[thread == number][0])]
        row = {"pid": pid, "tid": trace.tids[number], "kernels": len(mine)}
        found.append({**row, "mean_ns": float(mine.mean()), "longest_ns": int(mine.max())})
    return found


def _overlap(trace: Trace) -> Rows:
    operations = trace.operations
    track, devices = device_tracks(operations)
    rows: Rows = []
    for number, (process, device) in enumerate(devices):
        copied, computed = (
            Busy.of(operations.start_ns[mine], operations.end_ns[mine])
            for kind in (OperationKind.COPY, OperationKind.KERNEL)
            for mine in ((track == number) & (operations.kind == kind),)
        )
        if copied.total_ns:
            hidden_ns = copied.total_ns - copied.without(computed).total_ns
            pid = trace.pids[process]
            rows.append({"pid": pid, "device": device, "copy_ns": copied.total_ns, "hidden_ns": hidden_ns})
    return rows


QUERIES = (
    Query("kernels", ("name",), ("launches", "total_ns"), _kernels),
    Query("gaps", ("pid", "device", "start_ns"), ("idle_ns",), _gaps),
    Query("copies", ("kind",), ("copies", "bytes", "gb_per_s"), _copies),
    Query("delays", ("pid", "tid"), ("kernels", "mean_ns", "longest_ns"), _delays),
    Query("overlap", ("pid", "device"), ("copy_ns", "hidden_ns"), _overlap),
)


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """The check "recording", and one for each query."""
    given = answers.text("trace")
    own = workspace / given if given else FOLDER / STARTER
    if wrong := unusable(own):
        reason = "there is no usable recording to run it against"
        return [failed("recording", wrong), *(not_checked(q.name, reason) for q in QUERIES)]
    with tempfile.TemporaryDirectory() as folder:
        recordings = {
            "your recording" if given else "the recording that came with the exercise": own,
            "a recording of nsys": OF_NSYS,
            "a made recording with two processes and four GPUs": made(
                Path(folder) / "made.sqlite", secrets.randbelow(2**31)
            ),
        }
        judged = [judge(question, workspace, recordings) for question in QUERIES]
    return [passed("recording", next(iter(recordings))), *judged]


def unusable(path: Path) -> str:
    """Why the queries cannot be judged with this recording; empty if they can."""
    if not path.is_file():
        return f"there is no file {path.name} in this folder: the recording that answer.toml names"
    try:
        file = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master")}
        finally:
            file.close()
        with Trace.open(path) as trace:
            graphs = bool((trace.operations.kind == OperationKind.GRAPH).any())
    except sqlite3.Error as error:
        return (
            f"{path.name} is not an SQLite file ({error}): `nsys export --type=sqlite` makes one of a report"
        )
    except LabError as error:
        return str(error)
    missing = [name for name in NEEDED if f"CUPTI_ACTIVITY_KIND_{name}" not in tables]
    if missing:
        return (
            f"{path.name} has no table CUPTI_ACTIVITY_KIND_{missing[0]}: use a recording with kernels, "
            "copies and memsets"
        )
    if graphs:
        return (
            f"{path.name} holds CUDA graphs recorded as a whole, without their kernels: use another recording"
        )
    return ""


def judge(question: Query, workspace: Path, recordings: dict[str, Path]) -> GradedCheck:
    """Run one query against each recording and compare the rows; the first difference is reported."""
    try:
        sql = (workspace / question.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return failed(question.name, f"{question.file} cannot be read: {error}")
    for which, path in recordings.items():
        with Trace.open(path) as trace:
            right = question.truth(trace)
        try:
            wrong = difference(question, rows_of(sql, path), right)
        except QueryError as error:
            wrong = str(error)
        if wrong:
            return failed(question.name, f"{question.file}, run against {which}: {wrong}")
    return passed(question.name, f"right in {len(recordings)} recordings, {len(right)} rows in the last")


def difference(question: Query, found: Rows, right: Rows) -> str:
    """What is wrong with the rows, without the right numbers; empty if nothing is."""
    wanted = (*question.key, *question.values)
    if found and set(found[0]) != set(wanted):
        return f"the columns must be {', '.join(wanted)}, not {', '.join(found[0])}"
    expected = {tuple(row[name] for name in question.key): row for row in right}
    seen = [tuple(row[name] for name in question.key) for row in found]
    if len(set(seen)) < len(seen):
        return f"it returns several rows with the same {', '.join(question.key)}"
    if extra := [key for key in seen if key not in expected]:
        shown = ", ".join(f"{name} {value!r}" for name, value in zip(question.key, extra[0], strict=True))
        return f"{len(extra)} of {len(seen)} rows should not be there, such as the one with {shown}"
    if len(seen) < len(expected):
        return f"it returns {len(seen)} rows, and {len(expected) - len(seen)} are missing"
    for name in question.values:
        bad = [row for row, key in zip(found, seen, strict=True) if not _same(row[name], expected[key][name])]
        if bad:
            shown = ", ".join(f"{key} {bad[0][key]!r}" for key in question.key)
            return f"{name} is wrong in {len(bad)} of {len(found)} rows, such as {bad[0][name]!r} for {shown}"
    return ""


def _same(given: object, right: object) -> bool:
    if not isinstance(given, (int, float)) or not isinstance(right, (int, float)):
        return given == right
    if isinstance(right, int):
        return given == right
    return abs(given - right) <= ROUNDING_FRAC * abs(right)


def _starter(name: str) -> str:
    return (FOLDER / f"{name}.sql").read_text(encoding="utf-8")


def _solution(name: str, old: str, new: str) -> str:
    text = (FOLDER / "solutions" / f"{name}.sql").read_text(encoding="utf-8")
    if old not in text:
        raise LookupError(f"{old!r} is not in the solution of {name}.sql")
    return text.replace(old, new)


def _mistakes() -> tuple[Mistake, ...]:
    def wrong(why: str, name: str, sql: str) -> Mistake:
        return Mistake(why, {}, name, {f"{name}.sql": sql})

    return (
        wrong("numbers of StringIds instead of names", "kernels", _starter("kernels")),
        wrong("short names merge templates", "kernels", _solution("kernels", "demangledName", "shortName")),
        wrong("the end of the row before", "gaps", _starter("gaps")),
        wrong(
            "all devices on one timeline", "gaps", _solution("gaps", "PARTITION BY globalPid, deviceId ", "")
        ),
        wrong(
            "copies left out of the work", "gaps", _solution("gaps", "MEMSET\n)", "MEMSET\n    WHERE 0\n)")
        ),
        wrong("every other kind is device to device", "copies", _starter("copies")),
        wrong(
            "the mean of the bandwidths",
            "copies",
            _solution(
                "copies",
                "sum(c.bytes) * 1.0 / sum(c.end - c.start)",
                "avg(c.bytes * 1.0 / (c.end - c.start))",
            ),
        ),
        wrong("correlation ids of another process", "delays", _starter("delays")),
        wrong("nsys' extra rows count twice", "delays", _solution("delays", "r.eventClass != 67", "1")),
        wrong(
            "the thread with its process",
            "delays",
            _solution("delays", "r.globalTid & 0xFFFFFF", "r.globalTid"),
        ),
        wrong("sums of pairs instead of the union", "overlap", _starter("overlap")),
        wrong("one row too many", "overlap", _solution("overlap", "WHERE copies > 0", "WHERE copies >= 0")),
        wrong(
            "the answer of one recording",
            "overlap",
            "SELECT 5430 AS pid, 0 AS device, 1 AS copy_ns, 1 AS hidden_ns",
        ),
        wrong("a recording that is changed until it fits", "gaps", "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL"),
        wrong("two statements", "copies", _solution("copies", "SELECT\n", "SELECT 1; SELECT\n")),
        wrong("an empty file", "delays", ""),
    )


EXERCISE = Exercise(
    entry=entry("sqlite-analysis"),
    question="Five queries run without an error, and all are wrong: why?",
    starter=(
        "README.md",
        "analyze_sqlite.py",
        *(question.file for question in QUERIES),
        "answer.toml",
        "recorded",
    ),
    findings=findings,
    repair=lambda _, __: [],
    program=(),
    recording=STARTER,
    rules=(),
    mistakes=_mistakes(),
)
