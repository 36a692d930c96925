# SPDX-License-Identifier: Apache-2.0
"""The tables of `nsys stats`, computed by SQL from their documented meaning and compared to the nanosecond.

The SQL is an oracle of its own: it shares no line with the analysis and reads the file through sqlite3.
Medians are the middle of the two in the middle, standard deviations those of the sample, as nsys prints them
(tests/analysis/test_statistics.py has numbers that it printed).
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from profiling_lab.analysis.apis import apis
from profiling_lab.analysis.copies import copies
from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.kernels.launches import launches
from profiling_lab.analysis.ranges.ranges import RangeRow, ranges
from profiling_lab.analysis.stats import Stats
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.trace import Trace

TESTS = Path(__file__).resolve().parents[1]
RECORDED = TESTS.parent / "profiling_lab/exercises/e17_python_backtrace/recorded"
IN_REPO = ("demo_h200", "nsys_h200")
CAPTURED = (
    "python_backtrace_h200",
    "autograd_nvtx_h200",
    "sampling_h200",
    "fsdp_inference_2xh100",
)

OPERATIONS = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
PROCESS = "({0}.globalTid & ~16777215)"
# What comes before ", seq = " or ", op_id = ": what emit_nvtx appends makes every text a name of its own.
NAME = (
    "substr(t, 1, min(IFNULL(NULLIF(instr(t, ', seq = '), 0), 100000),"
    " IFNULL(NULLIF(instr(t, ', op_id = '), 0), 100000)) - 1)"
)


class Row(NamedTuple):
    count: int
    total: int
    average: float
    median: float
    shortest: int
    longest: int
    deviation: float


class Oracle:
    """One file, read with sqlite3."""

    def __init__(self, path: Path) -> None:
        self.file = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        self.file.create_function("root", 1, lambda value: math.sqrt(value or 0))
        self.tables = {row[0] for row in self.file.execute("SELECT name FROM sqlite_master")}

    def has(self, name: str) -> bool:
        return f"CUPTI_ACTIVITY_KIND_{name}" in self.tables

    def summary(self, query: str, width: int = 1) -> dict[tuple[object, ...], Row]:
        """`query` gives `width` columns that name a row, and a value."""
        keys = ", ".join(f"k{i}" for i in range(width))
        found = self.file.execute(
            f"WITH d({keys}, v) AS ({query}),"
            f" r AS (SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY v) place,"
            f" count(*) OVER (PARTITION BY {keys}) n, avg(v) OVER (PARTITION BY {keys}) mean FROM d)"
            f" SELECT {keys}, n, sum(v), avg(v),"
            " avg(CASE WHEN place IN ((n + 1) / 2, (n + 2) / 2) THEN v END), min(v), max(v),"
            " root(sum((v - mean) * (v - mean)) / max(n - 1, 1))"
            f" FROM r GROUP BY {keys}"
        )
        return {tuple(row[:width]): Row(*row[width:]) for row in found}

    def operations(self) -> str:
        """All operations: process, correlation id, start, end."""
        return " UNION ALL ".join(
            f"SELECT globalPid p, correlationId c, start s, end e FROM CUPTI_ACTIVITY_KIND_{name}"
            for name in OPERATIONS
            if self.has(name)
        )


def same(found: Stats, expected: Row) -> bool:
    """To the nanosecond; ours are whole numbers, rounded down, the deviation to the nearest."""
    return (
        (found.count, found.total, found.shortest, found.longest)
        == (expected.count, expected.total, expected.shortest, expected.longest)
        and found.average == math.floor(expected.average)
        and found.median == math.floor(expected.median)
        and abs((found.deviation or 0) - expected.deviation) <= 0.5 + 1e-6 * expected.deviation
    )


@pytest.fixture(params=[*IN_REPO, *CAPTURED])
def path(request: pytest.FixtureRequest) -> Path:
    if request.param in IN_REPO:
        return RECORDED / f"{request.param}.sqlite"
    folder: Path = request.getfixturevalue("captures")
    return folder / f"{request.param}.sqlite"


@pytest.fixture
def oracle(path: Path) -> Iterator[Oracle]:
    found = Oracle(path)
    yield found
    found.file.close()


@pytest.fixture
def trace(path: Path) -> Iterator[Trace]:
    with Trace.open(path) as opened:
        yield opened


def test_cuda_gpu_kern_sum(trace: Trace, oracle: Oracle) -> None:
    """Kernels by their full names."""
    expected = oracle.summary(
        "SELECT s.value, k.end - k.start FROM CUPTI_ACTIVITY_KIND_KERNEL k"
        " JOIN StringIds s ON s.id = k.demangledName"
    )
    rows = {(row.name,): row.stats for row in top_kernels(trace).rows if row.kind == "kernel"}
    assert rows.keys() == expected.keys() and len(rows) > 3
    assert [key for key in rows if not same(rows[key], expected[key])] == []


def test_cuda_gpu_kern_sum_by_base_name(trace: Trace, oracle: Oracle) -> None:
    expected = oracle.summary(
        "SELECT s.value, k.end - k.start FROM CUPTI_ACTIVITY_KIND_KERNEL k"
        " JOIN StringIds s ON s.id = k.shortName"
    )
    rows = {
        (row.name,): row.stats for row in top_kernels(trace, group_by="short").rows if row.kind == "kernel"
    }
    assert rows.keys() == expected.keys()
    assert [key for key in rows if not same(rows[key], expected[key])] == []


def test_cuda_gpu_kern_gb_sum(trace: Trace, oracle: Oracle) -> None:
    """By grid and block."""
    expected = oracle.summary(
        "SELECT s.value, printf('<<<%dx%dx%d, %dx%dx%d>>>', gridX, gridY, gridZ, blockX, blockY, blockZ),"
        " k.end - k.start FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName",
        width=2,
    )
    rows = {
        (row.name, row.detail): row.stats
        for row in top_kernels(trace, group_by="grid").rows
        if row.kind == "kernel"
    }
    assert rows.keys() == expected.keys()
    assert [key for key in rows if not same(rows[key], expected[key])] == []


def test_cuda_api_sum(trace: Trace, oracle: Oracle) -> None:
    """Names without their version; rows of class 67 carry call chains and are no calls."""
    cut = "rtrim(s.value, '0123456789')"
    expected = oracle.summary(
        f"SELECT CASE WHEN {cut} LIKE '%!_v' ESCAPE '!' THEN substr({cut}, 1, length({cut}) - 2)"
        " ELSE s.value END, r.end - r.start FROM CUPTI_ACTIVITY_KIND_RUNTIME r"
        " JOIN StringIds s ON s.id = r.nameId WHERE r.eventClass <> 67"
    )
    rows = {(row.name,): row.stats for row in apis(trace).rows}
    assert rows.keys() == expected.keys() and len(rows) > 3
    assert [key for key in rows if not same(rows[key], expected[key])] == []


_DIRECTIONS = (
    "CASE copyKind WHEN 1 THEN 'memcpy HtoD' WHEN 2 THEN 'memcpy DtoH' WHEN 8 THEN 'memcpy DtoD' END"
)


def memory_rows(oracle: Oracle, value: str) -> dict[tuple[object, ...], Row]:
    parts = [
        f"SELECT {name}, {value} FROM CUPTI_ACTIVITY_KIND_{table}"
        for table, name in (("MEMCPY", _DIRECTIONS), ("MEMSET", "'memset'"))
        if oracle.has(table)
    ]
    return oracle.summary(" UNION ALL ".join(parts)) if parts else {}


def test_cuda_gpu_mem_time_sum(trace: Trace, oracle: Oracle) -> None:
    expected = memory_rows(oracle, "end - start")
    rows = {(row.direction,): row.times for row in copies(trace, "direction").rows}
    assert rows.keys() == expected.keys() and rows
    assert [key for key in rows if not same(rows[key], expected[key])] == []


def test_cuda_gpu_mem_size_sum(trace: Trace, oracle: Oracle) -> None:
    expected = memory_rows(oracle, "bytes")
    rows = {(row.direction,): row.sizes for row in copies(trace, "direction").rows}
    assert rows.keys() == expected.keys()
    assert [key for key in rows if not same(rows[key], expected[key])] == []


def range_rows(oracle: Oracle) -> None:
    """A table of ranges with an end: name, style, thread, start, end, and whether it ends where it began.

    Unlike nsys it has no range inside of another of its name: its time is part of that of the other.
    """
    oracle.file.execute("PRAGMA temp_store = memory")
    oracle.file.execute(
        f"CREATE TEMP TABLE ranges AS SELECT rowid id, {NAME} name, domain, style, tid, s, e, stays FROM"
        " (SELECT n.rowid, COALESCE(n.text, x.value, '') t, IFNULL(n.domainId, 0) domain,"
        " CASE n.eventType WHEN 59 THEN 'push/pop' ELSE 'start/end' END style, n.globalTid tid, n.start s,"
        " n.end e, IFNULL(n.endGlobalTid, n.globalTid) = n.globalTid stays"
        " FROM NVTX_EVENTS n LEFT JOIN StringIds x ON x.id = n.textId"
        " WHERE n.eventType IN (59, 60) AND n.end IS NOT NULL)"
    )
    oracle.file.execute("CREATE INDEX temp.named ON ranges(name, tid, s)")
    oracle.file.execute(
        "DELETE FROM ranges WHERE style = 'push/pop' AND id IN (SELECT i.id FROM ranges i JOIN ranges o"
        " ON o.name = i.name AND o.tid = i.tid AND o.domain = i.domain AND o.style = i.style"
        " AND o.s <= i.s AND o.e >= i.e AND (o.s < i.s OR o.e > i.e OR o.id < i.id))"
    )


def keyed(trace: Trace) -> dict[tuple[object, ...], RangeRow]:
    """Rows of `ranges` by name, number of the domain, and style."""
    numbers = {name: number for number, name in trace.ranges.domains.items()}
    return {
        (row.name, numbers.get(row.domain, 0) if row.domain else 0, row.style): row
        for row in ranges(trace).rows
    }


def test_nvtx_sum(trace: Trace, oracle: Oracle) -> None:
    range_rows(oracle)
    expected = oracle.summary("SELECT name, domain, style, e - s FROM ranges", width=3)
    if not expected:
        with pytest.raises(NotEnoughDataError):
            ranges(trace)
        return
    rows = {key: row.host for key, row in keyed(trace).items()}
    assert rows.keys() == expected.keys()
    assert [key for key in rows if not same(rows[key], expected[key])] == []


def test_nvtx_gpu_proj_sum(trace: Trace, oracle: Oracle) -> None:
    """From the first to the last operation whose call lies in the range, on its thread."""
    range_rows(oracle)
    process = PROCESS.format("r")
    oracle.file.execute(
        "CREATE TEMP TABLE launched AS SELECT r.globalTid tid, r.start cs, r.end ce, o.s, o.e"
        f" FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN ({oracle.operations()}) o"
        f" ON o.c = r.correlationId AND o.p = {process} WHERE r.eventClass <> 67"
    )
    oracle.file.execute("CREATE INDEX temp.at ON launched(tid, cs)")
    oracle.file.execute(
        "CREATE TEMP TABLE projected AS"
        " SELECT name, domain, style, max(l.e) - min(l.s) took, count(*) operations FROM ranges n"
        " JOIN launched l ON l.tid = n.tid AND l.cs BETWEEN n.s AND n.e AND l.ce <= n.e"
        " WHERE stays GROUP BY n.id"
    )
    expected = oracle.summary("SELECT name, domain, style, took FROM projected", width=3)
    operations = {
        row[:3]: row[3]
        for row in oracle.file.execute(
            "SELECT name, domain, style, sum(operations) FROM projected GROUP BY name, domain, style"
        )
    }
    if not len(trace.ranges):
        assert not expected
        return
    rows = {key: row for key, row in keyed(trace).items() if row.operations}
    assert rows.keys() == expected.keys() and rows
    assert [key for key, row in rows.items() if not same(row.projected, expected[key])] == []
    assert {key: row.operations for key, row in rows.items()} == operations


@pytest.mark.parametrize("phase", ["total", "call", "queue", "kernel"])
def test_cuda_kern_exec_sum(trace: Trace, oracle: Oracle, phase: str) -> None:
    """By process, thread, device, call and kernel; what was not queued has no time in the queue."""
    value, where = {
        "total": ("max(r.end, k.end) - r.start", ""),
        "call": ("r.end - r.start", ""),
        "queue": ("k.start - r.end", "AND k.start > r.end"),
        "kernel": ("k.end - k.start", ""),
    }[phase]
    cut = "rtrim(a.value, '0123456789')"
    expected = oracle.summary(
        "SELECT (r.globalTid >> 24) & 16777215, r.globalTid & 16777215, k.deviceId,"
        f" CASE WHEN {cut} LIKE '%!_v' ESCAPE '!' THEN substr({cut}, 1, length({cut}) - 2) ELSE a.value END,"
        f" s.value, {value} FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r"
        f" ON r.correlationId = k.correlationId AND k.globalPid = {PROCESS.format('r')}"
        " JOIN StringIds a ON a.id = r.nameId JOIN StringIds s ON s.id = k.demangledName"
        f" WHERE r.eventClass <> 67 {where}",
        width=5,
    )
    rows = {(row.pid, row.tid, row.device, row.api, row.kernel): row.phases for row in launches(trace).rows}
    found = {key: getattr(row, phase) for key, row in rows.items()}
    assert {key for key, stats in found.items() if stats.count} == expected.keys()
    assert [key for key in expected if not same(found[key], expected[key])] == []
