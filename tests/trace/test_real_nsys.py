# SPDX-License-Identifier: Apache-2.0
"""Our tables beside those that `nsys stats` prints, where nsys is installed.

    pytest tests/trace/test_real_nsys.py -v        on a machine with nsys on the PATH

nsys keeps what emit_nvtx appends to a name, so its rows of ranges are put together before they are compared.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiling_lab.trace import Trace
from profiling_lab.trace.apis import apis
from profiling_lab.trace.copies import copies
from profiling_lab.trace.kernels import top_kernels
from profiling_lab.trace.launches import launches
from profiling_lab.trace.ranges import RangeRow, ranges
from profiling_lab.trace.stats import Stats

RECORDED = Path(__file__).resolve().parents[2] / "profiling_lab/exercises/e17_python_backtrace/recorded"
FILES = ("nsys_h200", "demo_h200", "python_backtrace_h200", "autograd_nvtx_h200", "fsdp_inference_2xh100")
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


@pytest.fixture
def nsys() -> str:
    found = shutil.which("nsys")
    if found is None:
        pytest.skip(NO_NSYS)
    return found


@pytest.fixture(params=FILES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    source = RECORDED / f"{request.param}.sqlite"
    if not source.exists():
        folder: Path = request.getfixturevalue("shared_data")
        source = folder / "nsys" / f"{request.param}.sqlite"
    # nsys writes into the file that it reads.
    return Path(shutil.copy(source, tmp_path))


@pytest.fixture
def trace(path: Path) -> Iterator[Trace]:
    with Trace.open(path) as opened:
        yield opened


def stats(nsys: str, path: Path, report: str) -> Table:
    command = [nsys, "stats", "--report", report, "--format", "csv", "--output", "-", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=path.parent, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return table_of(done.stdout)


def cut(name: str) -> str:
    """Without the version of a function, or what emit_nvtx appends to a range."""
    return re.sub(r"(_v\d+)$|, (seq|op_id) = .*$", "", name)


def test_kernels(nsys: str, path: Path, trace: Trace) -> None:
    expected = {row["Name"]: row for row in stats(nsys, path, "cuda_gpu_kern_sum")}
    rows = {row.name: row.stats for row in top_kernels(trace).rows if row.kind == "kernel"}
    assert rows.keys() == expected.keys() and rows
    for name, row in expected.items():
        assert number(row["Instances"]) == rows[name].count and agrees(rows[name], row), name
        assert column(row, "Total Time") == rows[name].total


def test_api_calls(nsys: str, path: Path, trace: Trace) -> None:
    expected = {cut(row["Name"]): row for row in stats(nsys, path, "cuda_api_sum")}
    rows = {row.name: row.stats for row in apis(trace).rows}
    assert rows.keys() == expected.keys() and rows
    for name, row in expected.items():
        assert number(row["Num Calls"]) == rows[name].count and agrees(rows[name], row), name
        assert column(row, "Total Time") == rows[name].total


def operation(printed: str) -> str:
    """`[CUDA memcpy Host-to-Device]`, `[CUDA memcpy HtoD]` in older versions."""
    text = printed.strip("[]").removeprefix("CUDA ")
    for long, short in (("Host", "H"), ("Device", "D"), ("-to-", "to")):
        text = text.replace(long, short)
    return text


def test_copies_by_time_and_size(nsys: str, path: Path, trace: Trace) -> None:
    rows = {row.direction: row for row in copies(trace, "direction").rows}
    times = {operation(row["Operation"]): row for row in stats(nsys, path, "cuda_gpu_mem_time_sum")}
    sizes = {operation(row["Operation"]): row for row in stats(nsys, path, "cuda_gpu_mem_size_sum")}
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


def test_ranges(nsys: str, path: Path, trace: Trace) -> None:
    printed = stats(nsys, path, "nvtx_sum")
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
        assert sum(row.host.total for row in mine) == total[name]
        assert sum(row.host.count for row in mine) == count[name]


def test_projected_ranges(nsys: str, path: Path, trace: Trace) -> None:
    printed = stats(nsys, path, "nvtx_gpu_proj_sum")
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
        assert sum(row.projected.total for row in mine) == total[name]
        assert sum(row.operations for row in mine) == operations[name]


def test_launches(nsys: str, path: Path, trace: Trace) -> None:
    expected = {
        (int(row["PID"]), int(row["TID"]), int(row["DevId"]), cut(row["API Name"]), row["Kernel Name"]): row
        for row in stats(nsys, path, "cuda_kern_exec_sum")
    }
    rows = {(r.pid, r.tid, r.device, r.api, r.kernel): r.phases for r in launches(trace).rows}
    assert rows.keys() == expected.keys() and rows
    for key, row in expected.items():
        phases = rows[key]
        assert number(row["Count"]) == phases.total.count and number(row["QCount"]) == phases.queue.count
        assert agrees(phases.total, row, "T") and agrees(phases.call, row, "A"), key
        assert agrees(phases.kernel, row, "K"), key
        assert not phases.queue.count or agrees(phases.queue, row, "Q"), key
