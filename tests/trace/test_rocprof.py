# SPDX-License-Identifier: Apache-2.0
"""Traces of rocprofv3: the rocpd database and the JSON file."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from made_traces.rocprof import RocprofRun, training

from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.memory.peaks import memory_peaks
from profiling_lab.cli import main
from profiling_lab.errors import UnreadableInputError
from profiling_lab.rules import RULES, run, select
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import MemoryKind, OperationKind
from profiling_lab.trace.extras import LaunchShape, Style
from profiling_lab.trace.step_windows import step_windows

NVIDIA = re.compile(
    r"(?i:cupti|nsys|\bncu\b|nsight|profiling-lab record|tensor core)|cuDNN|\bNCCL\b|CUDA graph|NVTX"
)


@pytest.fixture(params=["rocpd", "json", "json.gz"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return written(training(), tmp_path, request.param)


def written(run: RocprofRun, folder: Path, form: str = "rocpd") -> Path:
    """The run as a file of this form."""
    path = folder / ("run_results.db" if form == "rocpd" else f"run_results.{form}")
    if form == "rocpd":
        run.write_rocpd(path)
        return path
    run.write_json(path)
    if form.endswith("gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    return path


def test_totals_agree_with_sql(tmp_path: Path) -> None:
    """By the views of the database, as its users query it."""
    path = written(training(), tmp_path)
    with sqlite3.connect(path) as file:
        kernels = file.execute(
            "SELECT s.display_name, count(*), sum(k.end - k.start) FROM rocpd_kernel_dispatch k"
            " JOIN rocpd_info_kernel_symbol s ON s.id = k.kernel_id GROUP BY 1"
        ).fetchall()
        copies = file.execute(
            "SELECT count(*), sum(end - start), sum(size) FROM rocpd_memory_copy"
        ).fetchone()
        calls = file.execute(
            "SELECT s.string, count(*), sum(r.end - r.start) FROM rocpd_region r"
            " JOIN rocpd_event e ON e.id = r.event_id JOIN rocpd_string s ON s.id = r.name_id"
            " JOIN rocpd_string c ON c.id = e.category_id WHERE c.string LIKE 'HIP%' GROUP BY 1"
        ).fetchall()
    file.close()
    with Trace.open(path) as trace:
        rows = top_kernels(trace, limit=None).rows
        assert {(row.name, row.count, row.total_ns) for row in rows if row.kind == "kernel"} == {*kernels}
        is_copy = trace.operations.kind == OperationKind.COPY
        ours = (is_copy.sum(), trace.operations.duration_ns[is_copy].sum(), trace.operations.size_bytes.sum())
        assert ours == copies
        each = trace.calls.end_ns - trace.calls.start_ns
        named = {name: each[trace.calls.name == i] for i, name in enumerate(trace.calls.names)}
        assert {(name, len(ns), ns.sum()) for name, ns in named.items()} == {*calls}


def test_totals_agree_with_the_json(tmp_path: Path) -> None:
    path = written(training(), tmp_path, "json")
    (process,) = json.loads(path.read_text())["rocprofiler-sdk-tool"]
    symbols = {one["kernel_id"]: one["formatted_kernel_name"] for one in process["kernel_symbols"]}
    wanted: dict[str, list[int]] = {}
    for row in process["buffer_records"]["kernel_dispatch"]:
        ns = row["end_timestamp"] - row["start_timestamp"]
        wanted.setdefault(symbols[row["dispatch_info"]["kernel_id"]], []).append(ns)
    with Trace.open(path) as trace:
        rows = [row for row in top_kernels(trace, limit=None).rows if row.kind == "kernel"]
        assert {(r.name, r.count, r.total_ns) for r in rows} == {
            (n, len(v), sum(v)) for n, v in wanted.items()
        }


def rows(trace: Trace, table: str) -> list[tuple[object, ...]]:
    """All rows of a table in order of time, with names for numbers of names."""
    columns = getattr(trace, table)
    known = {f.name: getattr(columns, f.name) for f in fields(columns)}
    values = {name: column.tolist() for name, column in known.items() if isinstance(column, np.ndarray)}
    values["name"] = [columns.names[i] for i in values["name"]]
    if table == "ranges":
        values["domain"] = [columns.domains.get(domain, "") for domain in values["domain"]]
    return sorted(zip(values["start_ns"], *values.values(), strict=True))


def test_both_forms_are_the_same_trace(tmp_path: Path) -> None:
    one, two = (Trace.open(written(training(), tmp_path, form)) for form in ("rocpd", "json"))
    with one, two:
        for table in ("operations", "calls", "ranges"):
            assert rows(one, table) == rows(two, table)
        assert one.recorder == "rocprofv3" and one.pids == two.pids == (4321,)
        assert [gpu.name for gpu in one.gpus] == ["AMD Instinct MI300X (gfx942)"] * 2
        assert one.gpus == two.gpus and one.launch_shapes.shapes == two.launch_shapes.shapes


def test_operations_have_their_place_and_launch(path: Path) -> None:
    with Trace.open(path) as trace:
        operations, call = trace.operations, trace.attribution.call
        assert (call >= 0).all()
        launched = {
            (operations.names[n], trace.calls.names[trace.calls.name[c]])
            for n, c in zip(operations.name.tolist(), call.tolist(), strict=True)
        }
        assert ("memcpy HtoD", "hipMemcpyAsync") in launched and ("memcpy DtoH", "hipMemcpyAsync") in launched
        # The kernel of the all-reduce names the HSA call inside of the launch.
        assert ("ncclDevKernel_AllReduce", "hipLaunchKernel") in launched
        reduces = operations.name == operations.names.index("ncclDevKernel_AllReduce")
        assert {*operations.device[reduces].tolist()} == {1} and {*operations.stream[reduces].tolist()} == {5}
        assert {*operations.device[~reduces].tolist()} == {0}
        copies = operations.kind == OperationKind.COPY
        assert {*operations.source_memory[copies].tolist()} == {MemoryKind.DEVICE, MemoryKind.UNKNOWN}


def test_a_grid_counts_workgroups(path: Path) -> None:
    with Trace.open(path) as trace:
        assert trace.launch_shapes is not None
        assert trace.launch_shapes.shapes == (LaunchShape((16, 2, 1), (256, 1, 1), 48, 1024),)
        kernels = trace.operations.kind == OperationKind.KERNEL
        assert (trace.launch_shapes.number[kernels] == 0).all()
        assert (trace.launch_shapes.number[~kernels] == -1).all()


def test_ranges_are_named_by_their_message(path: Path) -> None:
    with Trace.open(path) as trace:
        ranges = trace.ranges
        own = ranges.domain == 0
        assert [ranges.names[i] for i in ranges.name[own]] == [f"train step {i}" for i in range(6)]
        assert {*ranges.domains.values()} == {"RCCL_API"} and int((~own).sum()) == 6
        assert (trace.range_styles == Style.PUSH_POP).all()
        steps = step_windows(trace)
        assert steps.sign == "range" and len(steps) == 6


def test_ranges_of_a_process_may_end_elsewhere(tmp_path: Path) -> None:
    made = training(1)
    made.range("epoch", 5_000, 900_000, name="roctxProcessRangeA")
    with Trace.open(written(made, tmp_path)) as trace:
        apart = [trace.ranges.names[i] for i in trace.ranges.name[trace.range_styles == Style.START_END]]
        assert apart == ["epoch"]


def test_memory_is_given_back_by_address(path: Path) -> None:
    with Trace.open(path) as trace:
        peaks = {peak.device: peak for peak in memory_peaks(trace) or ()}
        assert {device: peak.peak_bytes for device, peak in peaks.items()} == {0: 64 << 20, 1: 32 << 20}
        assert peaks[0].total_bytes == 192 << 30
        events = trace.source.memory()
        assert events is not None and events.change_bytes.tolist() == [64 << 20, 32 << 20, -(64 << 20)]


def test_unknown_host_memory_is_not_pinned_memory(path: Path) -> None:
    with Trace.open(path) as trace:
        checked = run(trace, select(RULES, ["pageable_copy", "blocked_copy"]))
        assert {rule for rule, _ in checked.abstained} == {"pageable_copy", "blocked_copy"}


def test_processes_of_one_database_keep_apart(tmp_path: Path) -> None:
    path = tmp_path / "two.db"
    one, two = training(2), training(3)
    two.pid, two.uuid = 99, one.uuid.replace("450", "451")
    for row in (*two.regions, *two.kernels, *two.copies):
        row["tid"] = two.pid
    one.write_rocpd(path)
    two.write_rocpd(path)
    with Trace.open(path) as trace:
        counts = np.bincount(trace.operations.process).tolist()
        assert dict(zip(trace.pids, counts, strict=True)) == {4321: 14, 99: 21}
        called = trace.calls.process[trace.attribution.call]
        assert (called == trace.operations.process).all()


def test_queues_stand_in_for_streams(tmp_path: Path) -> None:
    made = training(1)
    for row in (*made.kernels, *made.copies):
        row["stream"] = 0
    with Trace.open(written(made, tmp_path)) as trace:
        kernels = trace.operations.kind == OperationKind.KERNEL
        assert {*trace.operations.stream[kernels].tolist()} == {7}


def test_damaged_times_are_counted(tmp_path: Path) -> None:
    made = training(1)
    made.kernels[0]["end"] = made.kernels[0]["start"] - 5
    made.kernels[1]["start"] = 1 << 62
    with Trace.open(written(made, tmp_path)) as trace:
        assert len(trace.operations) == 6 and trace.operations.duration_ns.min() == 0
        assert [*trace.repairs.values()] == [1, 1]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def other_version(path: Path) -> None:
    with sqlite3.connect(path) as file:
        (name,) = file.execute("SELECT name FROM sqlite_master WHERE name LIKE 'rocpd_metadata_%'").fetchone()
        file.execute(f'UPDATE "{name}" SET value = 4')
    file.close()


def no_dispatches(path: Path) -> None:
    with sqlite3.connect(path) as file:
        query = "SELECT name FROM sqlite_master WHERE name LIKE 'rocpd_kernel_dispatch_%'"
        file.execute(f'DROP TABLE "{file.execute(query).fetchone()[0]}"')
        file.execute("DROP VIEW rocpd_kernel_dispatch")
    file.close()


def no_ids(path: Path) -> None:
    with sqlite3.connect(path) as file:
        (name,) = file.execute("SELECT name FROM sqlite_master WHERE name LIKE 'rocpd_string_%'").fetchone()
        file.execute(f'DROP TABLE "{name}"')
        file.execute(f'CREATE TABLE "{name}" (id, string)')
        file.execute(f'INSERT INTO "{name}" VALUES (NULL, NULL)')
    file.close()


def of_the_older_tool(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE rocpd_metadata (id INTEGER, tag TEXT, value TEXT)")
        file.execute("CREATE TABLE rocpd_op (id INTEGER, start INTEGER, end INTEGER)")
    file.close()


def texts_for_times(path: Path) -> None:
    path.write_text(re.sub(r'"start_timestamp": (\d+)', r'"start_timestamp": "\1"', path.read_text()))


@pytest.mark.parametrize(
    ("form", "damage", "says"),
    [
        ("rocpd", cut, "truncated SQLite file"),
        ("rocpd", other_version, "is a rocpd database of schema version 4; expected version 3"),
        (
            "rocpd",
            no_dispatches,
            "is an incomplete rocpd database: it has no table rocpd_kernel_dispatch_0000",
        ),
        ("rocpd", no_ids, "has a value that is not an integer in an integer column"),
        ("rocpd", of_the_older_tool, "is a database of rocmProfileData, which is not read"),
        ("json", cut, "is truncated or damaged JSON of rocprofv3"),
        ("json", texts_for_times, "is not JSON as rocprofv3 writes it: Expected `int`, got `str`"),
        ("json.gz", cut, "it cannot be decompressed"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, damage: Callable[[Path], None], says: str
) -> None:
    path = written(training(), tmp_path, form)
    damage(path)
    assert main(["kernels", str(path)]) == UnreadableInputError.exit_code
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line and str(path) in line


@pytest.mark.parametrize(
    ("name", "head", "says"),
    [
        ("run_results.pftrace", b"\x0a\x10perfetto", r"Perfetto trace.*--output-format rocpd"),
        ("kernel_trace.csv", b'"Kind","Agent_Id","Queue_Id"\n', r"CSV file.*--output-format rocpd"),
    ],
)
def test_other_forms_of_rocprofv3_are_named(tmp_path: Path, name: str, head: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(head)
    with pytest.raises(UnreadableInputError, match=says):
        Trace.open(path)


def test_without_kernels_it_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = RocprofRun()
    made.call("hipMalloc", 2_000, 3_000)
    assert main(["kernels", str(written(made, tmp_path))]) == 3
    assert "--kernel-trace" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["info"], ["kernels"], ["steps"], ["gaps"], ["check", "--fail-on", "never"], ["ranges"], ["apis"],
        ["copies"], ["streams"], ["overlap"], ["syncs"], ["critical-path"], ["collectives"], ["ranks"],
        ["lines"], ["lines", "--by", "kernel"], ["lines", "--host"], ["kernels", "--group-by", "shape"],
        ["memory"], ["roofline"],
        ["memory"], ["roofline"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_commands_speak_of_amd(path: Path, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    status = main([*command[:1], str(path), *command[1:]])
    said = "".join(capsys.readouterr())
    without = command[0] in ("lines", "memory", "roofline") or "shape" in command
    without &= command != ["lines", "--by", "kernel"]
    assert status == (3 if without else 0), said
    assert not NVIDIA.search(said), NVIDIA.findall(said)


def test_report_and_diff_read_it(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(path), "-o", str(page)]) == 0
    assert "train step 3" in page.read_text()
    assert main(["diff", str(path), str(path)]) == 0
    assert "NO CHANGE" in capsys.readouterr().out


def test_a_trace_without_calls_is_told_how_to_record_them(tmp_path: Path) -> None:
    """The form that most people share: kernels alone."""
    made = training()
    made.regions.clear()
    with Trace.open(written(made, tmp_path)) as trace:
        checked = run(trace, RULES)
    told = {rule: abstain.to_record for rule, abstain in checked.abstained}
    assert "rocprofv3 --hip-trace" in told["sync_calls"] and "rocprofv3 --hip-trace" in told["queue_full"]
    said = " ".join(f"{abstain.reason} {abstain.to_record}" for _, abstain in checked.abstained)
    assert not NVIDIA.search(said), NVIDIA.findall(said)
