# SPDX-License-Identifier: Apache-2.0
"""Our tables against those that `nsys stats` prints: as it printed them once, and as an installed nsys does.

    pytest tests/analysis/test_real_nsys.py -v        with nsys on the PATH: both
    python tests/analysis/test_real_nsys.py           writes what it prints now to tests/data/nsys_stats

nsys keeps what emit_nvtx appends to a name, so its rows of ranges are put together before they are compared.
And it counts a call twice whose native call chain was recorded, as the chain is a row of its own:
its tables are of a copy without those rows, except where the test is about them.
"""

from __future__ import annotations

import csv
import gzip
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from profiling_lab.analysis.apis import apis
from profiling_lab.analysis.copies import copies
from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.kernels.launches import launches
from profiling_lab.analysis.ranges.ranges import RangeRow, ranges
from profiling_lab.analysis.stats import Stats
from profiling_lab.trace import Trace
from profiling_lab.trace.nsys.calls import BACKTRACE_CLASS

RECORDED = Path(__file__).resolve().parents[2] / "profiling_lab/exercises/e17_python_backtrace/recorded"
PRINTED = Path(__file__).resolve().parents[1] / "data" / "nsys_stats"
CAPTURES = PRINTED.parent / "captures"
FILES = ("nsys_h200", "demo_h200", "python_backtrace_h200", "autograd_nvtx_h200", "fsdp_inference_2xh100")
IN_PRINTED = ("nsys_h200", "python_backtrace_h200", "autograd_nvtx_h200")
"""nsys 2025.3.1; the rest is larger than what it tells"""
REPORTS = (
    "cuda_gpu_kern_sum", "cuda_api_sum", "cuda_gpu_mem_time_sum", "cuda_gpu_mem_size_sum", "nvtx_sum",
    "nvtx_gpu_proj_sum", "cuda_kern_exec_sum",
)  # fmt: skip
NO_NSYS = "nsys is not on the PATH"
# 0.1 ns is what nsys prints; ours are rounded down, deviations to the nearest.
TOLERANCE_NS = 1.0

Table = list[dict[str, str]]


def table_of(printed: str) -> Table:
    """The rows of the CSV in what nsys printed, which may stand between messages; [] if it printed none."""
    lines = printed.splitlines()
    title = re.compile(r'"?(Time \(%\)|Total \(MB\)|Range,|PID)')
    head = next((i for i, line in enumerate(lines) if title.match(line)), None)
    if head is None:
        return []
    end = next((i for i in range(head, len(lines)) if not lines[i].strip()), len(lines))
    return list(csv.DictReader(lines[head:end]))


def number(text: str) -> float:
    return float(text.replace(",", "") or 0)


def column(row: dict[str, str], start: str) -> float:
    """The value of the column whose title starts so; the unit follows."""
    (title,) = [name for name in row if name.startswith(f"{start} (") or name == start]
    return number(row[title])


def agrees(found: Stats, row: dict[str, str], prefix: str = "", scale: float = 1.0) -> bool:
    """`scale`: how many of our units one of nsys' is."""
    pairs = [("Avg", found.average), ("Med", found.median), ("Min", found.shortest), ("Max", found.longest)]
    pairs.append(("StdDev", found.deviation or 0))
    near = max(TOLERANCE_NS, scale / 1000)
    return all(abs(column(row, f"{prefix}{name}") * scale - value) <= near for name, value in pairs)


def test_what_nsys_prints_is_understood() -> None:
    """Titles as nsys 2025.1.1 has them, and a table it printed."""
    printed = (
        "NOTICE: Existing SQLite export found: add_cuda.sqlite\n\n"
        "Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
        "99.9,136776274,3,45592091.3,3472.0,2280,136770522,78962837.2,cudaMalloc\n"
        "0.0,43672,1,43672.0,43672.0,43672,43672,0.0,cudaLaunchKernel\n\n"
    )
    rows = table_of(printed)
    assert [row["Name"] for row in rows] == ["cudaMalloc", "cudaLaunchKernel"]
    assert agrees(Stats(3, 136776274, 45592091, 3472, 2280, 136770522, 78962837), rows[0])
    assert not agrees(Stats(3, 136776274, 45592091, 3472, 2280, 136770522, 64472860), rows[0])
    assert table_of("SKIPPED: add_cuda.sqlite does not contain CUDA trace data.\n") == []


@dataclass(frozen=True)
class Nsys:
    """What `nsys stats` prints of one recording."""

    path: Path
    installed: str | None
    """the program; None: what it printed when the tables in PRINTED were written"""

    def stats(self, report: str) -> Table:
        """With every call counted once."""
        return self._table(without_call_chains, report)

    def stats_of_file_as_it_is(self, report: str) -> Table:
        return self._table(shutil.copy, report)

    def _table(self, prepare: Callable[[Path, Path], object], report: str) -> Table:
        if self.installed:
            with TemporaryDirectory() as folder:  # nsys writes into the file that it reads
                copy = Path(folder, self.path.name)
                prepare(self.path, copy)
                return table_of(printed_by(self.installed, copy, report))
        kind = "" if prepare is without_call_chains else ".as_it_is"
        return table_of((PRINTED / f"{self.path.stem}.{report}{kind}.csv").read_text())


def without_call_chains(path: Path, copy: Path) -> None:
    shutil.copy(path, copy)
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE eventClass = ?", [BACKTRACE_CLASS])


def printed_by(nsys: str, path: Path, report: str) -> str:
    command = [nsys, "stats", "--report", report, "--format", "csv", "--output", "-", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=path.parent, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(
    params=[*(("printed", name) for name in IN_PRINTED), *(("installed", name) for name in FILES)],
    ids="-".join,
)
def nsys(request: pytest.FixtureRequest, captures: Path) -> Nsys:
    who, name = request.param
    path = RECORDED / f"{name}.sqlite"
    if not path.exists():
        path = captures / f"{name}.sqlite"
    if who == "printed":
        return Nsys(path, None)
    found = shutil.which("nsys")
    if found is None:
        pytest.skip(NO_NSYS)
    return Nsys(path, found)


@pytest.fixture
def trace(nsys: Nsys) -> Iterator[Trace]:
    with Trace.open(nsys.path) as opened:
        yield opened


def cut(name: str) -> str:
    """Without the version of a function, or what emit_nvtx appends to a range."""
    return re.sub(r"(_v\d+)$|, (seq|op_id) = .*$", "", name)


def test_kernels(nsys: Nsys, trace: Trace) -> None:
    expected = {row["Name"]: row for row in nsys.stats("cuda_gpu_kern_sum")}
    rows = {row.name: row.stats for row in top_kernels(trace).rows if row.kind == "kernel"}
    assert rows.keys() == expected.keys() and rows
    for name, row in expected.items():
        assert number(row["Instances"]) == rows[name].count and agrees(rows[name], row), name
        assert column(row, "Total Time") == rows[name].total


def test_api_calls(nsys: Nsys, trace: Trace) -> None:
    expected = {cut(row["Name"]): row for row in nsys.stats("cuda_api_sum")}
    rows = {row.name: row.stats for row in apis(trace).rows}
    assert rows.keys() == expected.keys() and rows
    for name, row in expected.items():
        assert number(row["Num Calls"]) == rows[name].count and agrees(rows[name], row), name
        assert column(row, "Total Time") == rows[name].total


def test_nsys_counts_a_call_with_its_call_chain_twice(nsys: Nsys, trace: Trace) -> None:
    query = f"SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE eventClass = {BACKTRACE_CLASS}"
    with closing(sqlite3.connect(f"file:{nsys.path}?mode=ro", uri=True)) as connection:
        ((chains,),) = connection.execute(query)
    printed = sum(number(row["Num Calls"]) for row in nsys.stats_of_file_as_it_is("cuda_api_sum"))
    assert printed == sum(row.stats.count for row in apis(trace).rows) + chains


def operation(printed: str) -> str:
    """`[CUDA memcpy Host-to-Device]`, `[CUDA memcpy HtoD]` in older versions."""
    text = printed.strip("[]").removeprefix("CUDA ")
    for long, short in (("Host", "H"), ("Device", "D"), ("-to-", "to")):
        text = text.replace(long, short)
    return text


def test_copies_by_time_and_size(nsys: Nsys, trace: Trace) -> None:
    rows = {row.direction: row for row in copies(trace, "direction").rows}
    times = {operation(row["Operation"]): row for row in nsys.stats("cuda_gpu_mem_time_sum")}
    sizes = {operation(row["Operation"]): row for row in nsys.stats("cuda_gpu_mem_size_sum")}
    assert rows.keys() == times.keys() == sizes.keys() and rows
    for name, row in rows.items():
        assert number(times[name]["Count"]) == row.times.count and agrees(row.times, times[name]), name
        assert agrees(row.sizes, sizes[name], scale=1e6), name
        assert column(sizes[name], "Total") * 1e6 == pytest.approx(row.sizes.total, abs=1e3)


def ranges_by_title(trace: Trace) -> dict[str, list[RangeRow]]:
    found: dict[str, list[RangeRow]] = {}
    for row in ranges(trace).rows:
        found.setdefault(f"{row.domain}:{row.name}", []).append(row)
    return found


def test_ranges(nsys: Nsys, trace: Trace) -> None:
    """nsys adds the time of a range inside of another of its name a second time."""
    printed = nsys.stats("nvtx_sum")
    if not len(trace.ranges):
        assert not printed
        return
    total: dict[str, float] = {}
    count: dict[str, float] = {}
    for row in printed:
        name = cut(row["Range"])
        total[name] = total.get(name, 0) + column(row, "Total Time")
        count[name] = count.get(name, 0) + number(row["Instances"])
    rows = ranges_by_title(trace)
    assert rows.keys() == total.keys()
    for name, mine in rows.items():
        nested = sum(row.nested for row in mine)
        assert sum(row.host.count for row in mine) + nested == count[name]
        host_ns = sum(row.host.total for row in mine)
        assert host_ns < total[name] if nested else host_ns == total[name]


def test_projected_ranges(nsys: Nsys, trace: Trace) -> None:
    printed = nsys.stats("nvtx_gpu_proj_sum")
    total: dict[str, float] = {}
    operations: dict[str, float] = {}
    for row in printed:
        name = cut(row["Range"])
        total[name] = total.get(name, 0) + column(row, "Total Proj Time")
        operations[name] = operations.get(name, 0) + number(row["Total GPU Ops"])
    if not len(trace.ranges):
        assert not printed
        return
    rows = {
        name: mine for name, mine in ranges_by_title(trace).items() if any(row.operations for row in mine)
    }
    assert rows.keys() == total.keys()
    for name, mine in rows.items():
        projected_ns, launched = sum(row.projected.total for row in mine), sum(row.operations for row in mine)
        if any(row.nested for row in mine):  # what launched nothing itself was not added twice
            assert projected_ns <= total[name] and launched <= operations[name]
        else:
            assert (projected_ns, launched) == (total[name], operations[name])


def test_launches(nsys: Nsys, trace: Trace) -> None:
    expected = {
        (int(row["PID"]), int(row["TID"]), int(row["DevId"]), cut(row["API Name"]), row["Kernel Name"]): row
        for row in nsys.stats("cuda_kern_exec_sum")
    }
    rows = {(r.pid, r.tid, r.device, r.api, r.kernel): r.phases for r in launches(trace).rows}
    assert rows.keys() == expected.keys() and rows
    for key, row in expected.items():
        phases = rows[key]
        assert number(row["Count"]) == phases.total.count and number(row["QCount"]) == phases.queue.count
        assert agrees(phases.total, row, "T") and agrees(phases.call, row, "A"), key
        assert agrees(phases.kernel, row, "K"), key
        assert not phases.queue.count or agrees(phases.queue, row, "Q"), key


def write(name: str, printed: str) -> None:
    lines = [line for line in printed.splitlines() if not line.startswith(("Processing [", "NOTICE"))]
    (PRINTED / name).write_text("\n".join(lines).strip() + "\n")


def write_what_nsys_prints(nsys: str) -> None:
    PRINTED.mkdir(exist_ok=True)
    for name in IN_PRINTED:
        with TemporaryDirectory() as folder:
            source, packed = RECORDED / f"{name}.sqlite", CAPTURES / f"{name}.sqlite.gz"
            if packed.exists():
                source = Path(folder, f"{name}.unpacked.sqlite")
                source.write_bytes(gzip.decompress(packed.read_bytes()))
            copy = Path(folder, f"{name}.sqlite")
            shutil.copy(source, copy)
            write(f"{name}.cuda_api_sum.as_it_is.csv", printed_by(nsys, copy, "cuda_api_sum"))
            copy = copy.with_suffix(".calls.sqlite")
            without_call_chains(source, copy)
            for report in REPORTS:
                write(f"{name}.{report}.csv", printed_by(nsys, copy, report))


if __name__ == "__main__":
    write_what_nsys_prints("nsys")
