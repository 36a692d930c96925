# SPDX-License-Identifier: Apache-2.0
"""Several processes of one job in one file: nothing lost, nothing mixed up, on one clock."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from recorder.runner import fake_runner

from profiling_lab.analysis.gaps.gaps import gaps
from profiling_lab.analysis.lines import lines
from profiling_lab.errors import LabError, NotEnoughDataError, UnreadableInputError, UsageError
from profiling_lab.recording.merging.merge import merge
from profiling_lab.recording.merging.rules import (
    BY_HAND,
    ONE_PER_FILE,
    ROW_BY_ROW,
    SAME_ROWS_ONCE,
    ColumnKind,
    meaning,
)
from profiling_lab.recording.tables.schema import NSYS_TABLES, PYREC_TABLES, column_names
from profiling_lab.trace import Trace
from profiling_lab.trace.window import WindowSelection, ranks

# Two ranks that both launch from layer(), and each from a function of its own.
RANK = """
import json
rank = int(os.environ["RANK"])
def layer(n): fake.kernel("_Z5layerPf", ns=1000 + rank)
def rank_0(): fake.kernel("only_zero")
def rank_1(): fake.kernel("only_one"); fake.copy(nbytes=77)
options = json.loads(os.environ.get("OPTIONS", "{}"))
with profiling_lab.record(OUT.replace("out", f"rank{rank}"), sample_hz=200, **options) as recorder:
    for i in range(5 + rank):
        layer(i)
        (rank_0, rank_1)[rank]()
    while _recorder.status()["sample_moments"] == "0": pass
"""


@pytest.fixture(scope="module")
def recorded(fake_library: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Recordings of ranks 0 and 1, which take a second to make."""
    folder = tmp_path_factory.mktemp("recorded")
    run = fake_runner(folder, fake_library)
    for rank in (0, 1):
        run("from profiling_lab import _recorder\n" + RANK, env={"RANK": str(rank), "WORLD_SIZE": "2"})
    return [folder / "rank0.sqlite", folder / "rank1.sqlite"]


@pytest.fixture
def job(recorded: list[Path], tmp_path: Path) -> list[Path]:
    """A copy of them for each test: most change something."""
    return [Path(shutil.copy(path, tmp_path)) for path in recorded]


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
        return file.execute(sql).fetchall()


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as file, file:
        for statement in statements:
            file.execute(statement)


KERNELS = """
    SELECT d.value, s.value, k.end - k.start, k.correlationId, k.start + t.utcEpochNs
    FROM CUPTI_ACTIVITY_KIND_KERNEL k, TARGET_INFO_SESSION_START_TIME t
    JOIN StringIds d ON d.id = k.demangledName JOIN StringIds s ON s.id = k.shortName"""
STACKS = """
    WITH RECURSIVE up(correlation, node, depth, function, file, line) AS (
        SELECT l.correlationId, s.parentId, s.depth, n.value, f.value, r.line
        FROM PYREC_LAUNCH l JOIN PYREC_STACK s ON s.id = l.stackId JOIN PYREC_FRAME r ON r.id = s.frameId
        JOIN StringIds n ON n.id = r.functionId JOIN StringIds f ON f.id = r.fileId
        UNION ALL
        SELECT up.correlation, s.parentId, s.depth, n.value, f.value, r.line
        FROM up JOIN PYREC_STACK s ON s.id = up.node JOIN PYREC_FRAME r ON r.id = s.frameId
        JOIN StringIds n ON n.id = r.functionId JOIN StringIds f ON f.id = r.fileId)
    SELECT correlation, depth, function, file, line FROM up"""
MARKS = """
    SELECT j.value, n.start + t.utcEpochNs, n.globalTid FROM NVTX_EVENTS n, TARGET_INFO_SESSION_START_TIME t
    JOIN StringIds j ON j.id = n.jsonTextId"""


def readable_marks(path: Path) -> Counter[Any]:
    names = dict(rows(path, "SELECT id, value FROM StringIds"))
    out: Counter[Any] = Counter()
    for text, start, tid in rows(path, MARKS):
        ((kind, stack),) = json.loads(text).items()
        frames = tuple((names[f["Function"]], names[f["File"]], f["Line"]) for f in stack["Frames"])
        out[kind, frames, start, tid] += 1
    return out


def test_every_row_of_every_file_is_there(job: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "job.sqlite"
    told: list[tuple[str, int, int]] = []
    merged = merge(job, out, lambda *news: told.append(news))
    assert rows(out, "PRAGMA integrity_check") == [("ok",)]
    assert stat.S_IMODE(out.stat().st_mode) == 0o600 and not list(tmp_path.glob("*.tmp"))
    copies = "SELECT bytes, globalPid FROM CUPTI_ACTIVITY_KIND_MEMCPY"
    assert rows(out, copies) == rows(job[1], copies) != []
    for sql in (KERNELS, STACKS):
        assert Counter(rows(out, sql)) == Counter(rows(job[0], sql)) + Counter(rows(job[1], sql)), sql
    assert readable_marks(out) == readable_marks(job[0]) + readable_marks(job[1])
    for table in ROW_BY_ROW:
        there = [path for path in job if rows(path, f"SELECT 1 FROM sqlite_master WHERE name = '{table}'")]
        count = sum(rows(path, f"SELECT count(*) FROM {table}")[0][0] for path in there)
        if there:
            assert rows(out, f"SELECT count(*) FROM {table}") == [(count,)], table
    meta = dict(rows(out, "SELECT * FROM PYREC_META"))
    assert meta == merged.facts and (meta["kernels"], meta["calls"]) == ("22", "28")
    assert told[-1][1] == told[-1][2] > 0 and merged.notes == ()


def test_all_verbs_read_it(recorded: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "job.sqlite"
    merge(recorded, out)
    own = (str(recorded[0].parent),)
    with Trace.open(out) as trace:
        assert ranks(trace)[1] and sorted(ranks(trace)[0]) == [0, 1]
        found = {row.function: row.kernels for row in lines(trace, own=own).rows}
        assert found["layer"] == 11 and found["rank_0"] == 5 and found["rank_1"] == 6, found
        one = trace.windowed(WindowSelection(ranks=(1,)))
        found = {row.function: row.kernels for row in lines(one, own=own).rows}
        assert found["layer"] == 6 and "rank_0" not in found
        assert gaps(trace).coverage.gpu_ns > 0


def test_times_are_those_of_the_earliest(job: list[Path], tmp_path: Path) -> None:
    """The second began 3 s later by the wall clock."""
    epoch = rows(job[0], "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")[0][0]
    change(job[1], f"UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = {epoch + 3_000_000_000}, "
                   "systemClockNs = 3000000777")  # fmt: skip
    change(job[0], "UPDATE TARGET_INFO_SESSION_START_TIME SET systemClockNs = 0")
    out = tmp_path / "job.sqlite"
    merged = merge([job[1], job[0]], out)
    assert rows(out, "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME") == [(epoch,)]
    for table, column in (("CUPTI_ACTIVITY_KIND_RUNTIME", "start"), ("CUPTI_ACTIVITY_KIND_KERNEL", "end")):
        late = rows(job[1], f"SELECT max({column}) FROM {table}")[0][0] + 3_000_000_000
        assert rows(out, f"SELECT max({column}) FROM {table}") == [(late,)]
    assert merged.facts["clock_uncertainty_ns"] == "777" and "0.001 ms" in merged.facts["clock_alignment"]
    domains = rows(out, "SELECT DISTINCT start FROM NVTX_EVENTS WHERE eventType = 75")
    assert domains == [(0,)]  # a name has no time
    duration = rows(out, "SELECT duration, stopTime - startTime FROM ANALYSIS_DETAILS")
    own = rows(job[1], "SELECT duration FROM ANALYSIS_DETAILS")[0][0]
    assert duration == [(own + 3_000_000_000,) * 2]


def test_clocks_of_two_machines_are_said_to_be_uncertain(job: list[Path], tmp_path: Path) -> None:
    change(job[1], "UPDATE TARGET_INFO_SESSION_START_TIME SET systemClockNs = systemClockNs + 5000000000")
    merged = merge(job, tmp_path / "job.sqlite")
    assert (
        merged.facts["clock_uncertainty_ns"] == "unknown"
        and "several machines" in merged.facts["clock_alignment"]
    )


def test_two_processes_of_one_number_stay_separate(job: list[Path], tmp_path: Path) -> None:
    """Every container numbers its processes from 1."""
    for path in job:
        pid = rows(path, "SELECT pid FROM PROCESSES")[0][0]
        for table, columns in {**NSYS_TABLES, **PYREC_TABLES}.items():
            if not rows(path, f"SELECT 1 FROM sqlite_master WHERE name = '{table}'"):
                continue
            for column in column_names(table):
                if meaning(table, column) is ColumnKind.GLOBAL_ID:
                    change(path, f"UPDATE {table} SET {column} = {column} - ({pid} << 24) + (7 << 24)")
                elif meaning(table, column) is ColumnKind.PROCESS:
                    change(path, f"UPDATE {table} SET {column} = 7")
            assert columns
    out = tmp_path / "job.sqlite"
    merged = merge(job, out)
    assert merged.notes == (
        "process 7 of rank1.sqlite is 8 here: another file has a process with the same pid",
    )
    assert rows(out, "SELECT pid, (globalPid >> 24) & 0xFFFFFF FROM PROCESSES") == [(7, 7), (8, 8)]
    joined = """
        SELECT (k.globalPid >> 24) & 0xFFFFFF, count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k
        JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
        ON r.correlationId = k.correlationId AND r.globalTid / 0x1000000 = k.globalPid / 0x1000000
        JOIN PYREC_LAUNCH l ON l.correlationId = r.correlationId AND l.globalTid = r.globalTid
        GROUP BY 1 ORDER BY 1"""
    assert rows(out, joined) == [(7, 10), (8, 12)]
    assert rows(out, "SELECT DISTINCT processId FROM TARGET_INFO_CUDA_STREAM ORDER BY 1") == [(7,), (8,)]
    with Trace.open(out) as trace:
        assert {rank: trace.pids[process] for rank, process in ranks(trace)[0].items()} == {0: 7, 1: 8}


def test_windows_stay_with_their_process(run: Any, tmp_path: Path) -> None:
    for rank in (0, 1):
        run(
            f"""
recorder = profiling_lab.recording.Recorder(OUT.replace("out", "rank{rank}")); recorder.start()
fake.kernel("a"); recorder.pause(); time.sleep(0.02)
recorder.resume(); fake.kernel("b")
if {rank}: recorder.pause(); time.sleep(0.01); recorder.resume(); fake.kernel("c")
recorder.stop()
"""
        )
    files = [tmp_path / "rank0.sqlite", tmp_path / "rank1.sqlite"]
    out = tmp_path / "job.sqlite"
    merge(files, out)
    for path in (*files, out):
        with Trace.open(path) as trace:
            pauses = trace.pauses.spans
            per_process = [int((pauses.process == process).sum()) for process in range(len(trace.pids))]
        assert per_process == {"rank0.sqlite": [1], "rank1.sqlite": [2], "job.sqlite": [1, 2]}[path.name]


def test_a_gpu_that_both_saw_is_listed_once(job: list[Path], tmp_path: Path) -> None:
    gpu = f"CREATE TABLE TARGET_INFO_GPU ({', '.join(column_names('TARGET_INFO_GPU'))})"
    device = "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid, uuid, numMultiprocessors)"
    for path, uuids in zip(job, (("a", "b"), ("b", "c")), strict=True):
        (pid,) = rows(path, "SELECT pid FROM PROCESSES")[0]
        change(path, gpu, device)
        for number, uuid in enumerate(uuids):
            change(
                path,
                f"INSERT INTO TARGET_INFO_GPU (vmId, id, name, uuid) VALUES (1, {number}, 'H200', '{uuid}')",
                f"INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES ({number}, {number}, {pid}, '{uuid}', 132)",
            )
    out = tmp_path / "job.sqlite"
    merge(job, out)
    assert rows(out, "SELECT id, uuid FROM TARGET_INFO_GPU ORDER BY id") == [(0, "a"), (1, "b"), (2, "c")]
    devices = (
        "SELECT d.cudaId, g.uuid FROM TARGET_INFO_CUDA_DEVICE d JOIN TARGET_INFO_GPU g ON g.id = d.gpuId"
    )
    assert sorted(rows(out, devices)) == [(0, "a"), (0, "b"), (1, "b"), (1, "c")]


def test_what_is_said_of_each_process_is_kept(job: list[Path], tmp_path: Path) -> None:
    change(job[1], "UPDATE PYREC_META SET value = 'switched off' WHERE name = 'stacks_state'",
           "DELETE FROM PYREC_META WHERE name = 'finished'")  # fmt: skip
    out = tmp_path / "job.sqlite"
    merge(job, out)
    meta = dict(rows(out, "SELECT * FROM PYREC_META"))
    assert (
        meta["stacks_state"] == "on (rank0.sqlite); switched off (rank1.sqlite)" and meta["finished"] == "no"
    )
    assert meta["world_size"] == "2" and "rank" not in meta and meta["merged_recordings"] == "2"
    kept = rows(out, "SELECT name, value FROM PYREC_PROCESS")
    for path in job:
        assert set(rows(path, "SELECT name, value FROM PYREC_META")) | {("file", path.name)} <= set(kept)


def test_merged_files_are_merged_again(job: list[Path], tmp_path: Path) -> None:
    at_once, first, twice = tmp_path / "at_once.sqlite", tmp_path / "first.sqlite", tmp_path / "twice.sqlite"
    third = tmp_path / "rank2.sqlite"
    third.write_bytes(job[0].read_bytes())
    change(third, "UPDATE PYREC_META SET value = '2' WHERE name = 'rank'",
           "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + 1000")  # fmt: skip
    merge([*job, third], at_once)
    merge(job, first)
    merge([first, third], twice)
    for sql in (KERNELS, STACKS):
        assert Counter(rows(twice, sql)) == Counter(rows(at_once, sql))
    with Trace.open(twice) as trace:
        assert sorted(ranks(trace)[0]) == [0, 1, 2] and ranks(trace)[1]


def test_what_is_no_job_is_refused(job: list[Path], tmp_path: Path, captures: Path) -> None:
    out = tmp_path / "job.sqlite"
    with pytest.raises(UsageError, match="expected two or more"):
        merge(job[:1], out)
    with pytest.raises(NotEnoughDataError, match="are the same recording"):
        merge([job[0], job[0]], out)
    with pytest.raises(UsageError, match="is one of the files to merge"):
        merge(job, job[1])
    with pytest.raises(UnreadableInputError, match="there is no file"):
        merge([job[0], tmp_path / "none.sqlite"], out)
    (tmp_path / "text.sqlite").write_text("no database at all, but long enough" * 10)
    with pytest.raises(UnreadableInputError, match="is not an SQLite file"):
        merge([job[0], tmp_path / "text.sqlite"], out)
    with pytest.raises(UsageError, match="was not recorded by profiling-lab"):
        merge([job[0], captures / "fsdp_inference_2xh100.sqlite"], out)
    assert not out.exists() and not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("UPDATE PYREC_META SET value = '0' WHERE name = 'rank'", "are both rank 0"),
        ("UPDATE PYREC_META SET value = '8' WHERE name = 'world_size'", "a job of 2 ranks, .* to one of 8"),
        ("DELETE FROM TARGET_INFO_SESSION_START_TIME", "has no start time"),
        ("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = NULL", "has no start time"),
        ("CREATE TABLE OSRT_API (start, end)", "table OSRT_API that this version does not know"),
        ("ALTER TABLE PYREC_LAUNCH ADD COLUMN more", "column PYREC_LAUNCH.more that this version"),
    ],
)
def test_what_contradicts_itself_is_refused(
    job: list[Path], tmp_path: Path, statement: str, text: str
) -> None:
    change(job[1], statement)
    with pytest.raises(LabError, match=text):
        merge(job, tmp_path / "job.sqlite")


def test_a_file_that_cannot_be_written_leaves_nothing(job: list[Path], tmp_path: Path) -> None:
    (tmp_path / "job.sqlite.tmp").mkdir()
    with pytest.raises(LabError, match="cannot write"):
        merge(job, tmp_path / "job.sqlite")
    assert not (tmp_path / "job.sqlite").exists()


def test_every_column_is_thought_of() -> None:
    """A new table or column needs a look: does it hold times, processes, strings or ids?"""
    every = {*NSYS_TABLES, *PYREC_TABLES}
    assert every == {*ROW_BY_ROW, *ONE_PER_FILE, *SAME_ROWS_ONCE, *BY_HAND}
    plain = {
        column
        for table in ROW_BY_ROW
        for column in column_names(table)
        if meaning(table, column) is ColumnKind.PLAIN
        and column.endswith(("Id", "Tid", "Pid", "id", "time", "start", "end"))
    }
    # Numbers that CUDA, NVTX or nsys give within a process, or for all time.
    assert plain == {
        "deviceId", "contextId", "greenContextId", "streamId", "correlationId", "gridId", "graphNodeId",
        "graphId", "graphExecId", "deprecatedSrcId", "srcDeviceId", "srcContextId", "dstDeviceId",
        "dstContextId",
        "callchainId", "eventId", "eventSyncId", "rangeId", "domainId", "nullStreamId", "hwId", "vmId",
        "parentContextId", "setId",
    }  # fmt: skip


def test_large_tables_go_in_pieces(job: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import profiling_lab.recording.merging.merge as module

    whole, pieces = tmp_path / "whole.sqlite", tmp_path / "pieces.sqlite"
    merge(job, whole)
    monkeypatch.setattr(module, "_PIECE_ROWS", 3)
    told: list[int] = []
    merge(job, pieces, lambda what, done, total: told.append(done))
    assert len(told) > 20 and told == sorted(told)
    for sql in (KERNELS, STACKS):
        assert rows(whole, sql) == rows(pieces, sql)
    assert os.path.getsize(whole) == os.path.getsize(pieces)
