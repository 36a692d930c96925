# SPDX-License-Identifier: Apache-2.0
"""profiling-lab ranks"""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import pytest
from builders import TraceBuilder
from job_builder import KERNEL, Job

from profiling_lab.cli import main

NO_DASK = "dask.distributed is not installed"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    job = Job(ranks=4, steps=5)
    job.slow_compute[3] = 2_000_000
    job.clock_error[1] = 7_000_000
    (tmp_path / "job").mkdir()
    job.write(tmp_path / "job", facts=True)
    return tmp_path / "job"


def run(*arguments: object) -> int:
    return main(["ranks", "--jobs", "1", *map(str, arguments)])


def test_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder) == 0
    out, err = capsys.readouterr()
    assert "4 ranks in 4 files" in out and "ranks as the recordings say" in out and err == ""
    assert "clocks: moved by up to 7.0" in out
    assert "rank 3 is a straggler, by unequal work at " in out and "would save 2.000 ms per step" in out
    assert "that takes 2.0" in out and " ms per step there, 0 ns on the other ranks, mostly kernel" in out
    assert "it is last to 50.0 % of 10 collectives, in 5 of 5 steps, 2.00" in out
    rows = [line.split() for line in out.splitlines() if line[:2] in ("0 ", "1 ", "2 ", "3 ")]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    assert rows[3][-3:] == ["50.0", "%", "2.000"] and rows[0][-3:] == ["0.0", "%", "-"]


def test_a_folder_of_packed_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in folder.iterdir():
        (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert run(folder) == 0
    assert "4 ranks in 4 files" in capsys.readouterr().out


def test_packed_files_and_snapshots_next_to_recordings(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in list(folder.iterdir()):
        (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    (folder / "memory.pickle").write_bytes(b"\x80\x04}.")
    assert run(folder) == 0
    assert "4 ranks in 4 files" in capsys.readouterr().out


def test_other_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--by", "collective") == 0
    out = capsys.readouterr().out
    assert "AllReduce" in out and "number 0: rank 3 2.00" in out
    assert run(folder, "--by", "step", "--limit", "2") == 0
    assert "2 of 5 rows" in capsys.readouterr().out
    assert run(folder, "--limit", "1", "--format", "json") == 0
    (row,) = json.loads(capsys.readouterr().out)["data"]["rows"]
    assert row["rank"] == 3, "of some ranks the worst"
    assert run(folder, "--by", "line") == 0
    assert "slow on rank 3 only" in capsys.readouterr().out
    assert run(folder, "--by", "path", "--limit", "1") == 0
    (line,) = (row for row in capsys.readouterr().out.splitlines() if row.startswith("3 "))
    assert "model.py:42" in line and line.split()[-1] == "2.000"


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(folder, "--format", "json")
    envelope = json.loads(capsys.readouterr().out)
    rows, summary = envelope["data"]["rows"], envelope["data"]["summary"]
    assert (summary["kind"], summary["rank"]) == ("straggler", 3)
    assert summary["blame"]["line"] == "/app/model.py:42" and summary["blame"]["cause"] == "unequal work"
    assert summary["path"]["ranks"] == [0, 1, 2, 3] and summary["path"]["step_ns"] > 4_000_000
    assert summary["excess"]["line"] == "/app/model.py:42" and envelope["trace"]["world_size"] == 4
    assert [row["key"] for row in rows] == [f"rank {i}" for i in range(4)]
    assert rows[3]["late"] == 5 and rows[3]["file"] == "run.rank3.sqlite"
    for by in ("collective", "step", "line", "path"):
        run(folder, "--format", "json", "--by", by)
        keys = [row["key"] for row in json.loads(capsys.readouterr().out)["data"]["rows"]]
        assert keys and len(set(keys)) == len(keys)


def test_other_forms(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(folder, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["rank"] for row in rows] == ["0", "1", "2", "3"] and int(rows[0]["wait_ns"]) > 1_900_000
    run(folder, "--format", "md", "--by", "collective")
    assert "| AllReduce<br>step " in capsys.readouterr().out


def test_part_of_the_job(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--rank", 0, "--rank", 1, "--format", "json") == 0
    assert len(json.loads(capsys.readouterr().out)["data"]["rows"]) == 2
    assert run(folder, "--step", "1:3", "--format", "json") == 0
    assert {row["steps"] for row in json.loads(capsys.readouterr().out)["data"]["rows"]} == {2}
    assert run(folder, "--rank", 9) == 2
    assert "--rank 9: the job has rank 0, 1, 2, 3" in capsys.readouterr().err


def test_a_broken_file_is_reported_and_the_rest_compared(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (folder / "run.rank2.sqlite").read_bytes()
    (folder / "run.rank2.sqlite").write_bytes(whole[: len(whole) // 2])
    assert run(folder) == 4
    out, err = capsys.readouterr()
    assert "run.rank2.sqlite" in err and "truncated" in err and err.startswith("profiling-lab ranks: ")
    assert "3 ranks of 4 in 3 files" in out and "missing: rank 2" in out and "rank 3 is a straggler" in out


def test_a_file_without_gpu_work(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    TraceBuilder().call("cudaMalloc").write(folder / "run.rank4.sqlite")
    assert run(folder) == 3
    out, err = capsys.readouterr()
    assert "holds no GPU operation" in err and "rank 3 is a straggler" in out


def test_what_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "nowhere") == 4
    assert run(tmp_path) == 3
    assert "holds no trace" in capsys.readouterr().err
    paths = Job(ranks=2).write(tmp_path)
    assert run(paths[0]) == 3
    assert "at least two ranks" in capsys.readouterr().err
    paths[0].write_text("{}")
    assert run(paths[0], paths[0]) == 4
    assert run(paths[1], "--steps-by", "(") == 2


def test_without_dask_it_says_what_to_install(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    assert run(folder, "--dask", "local") == 2
    assert 'pip install "profiling-lab[dask]"' in capsys.readouterr().err


def test_a_straggler_without_a_cause_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of its own takes longer: it waits for another rank first, in a group that is not compared."""
    for rank in range(2):
        builder = TraceBuilder(pid=100 + rank).row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=10**18)
        for step in range(4):
            begin = 2_000_000 + step * 1_000_000
            builder.now_ns = begin - 9000
            builder.launch("gemm", 100_000, start_ns=begin)
            if rank == 1:
                builder.launch("ncclDevKernel_SendRecv", 500_000, start_ns=begin + 100_000)
            arrives = begin + 100_000 + rank * 500_000
            builder.launch(KERNEL, begin + 800_000 - arrives, start_ns=arrives)
            builder.range("training_step", begin - 9000, builder.now_ns)
        builder.write(tmp_path / f"run.rank{rank}.sqlite")
    assert run(tmp_path) == 0
    out = capsys.readouterr().out
    assert "no straggler, but ranks wait for each other" in out and "last: rank 1 100.0 %" in out
    assert "nothing that rank 1 does takes longer" in out and "do not say why it is late" in out
    assert run(tmp_path, "--by", "collective") == 0
    assert "ranks need not wait for each other here: not compared" in capsys.readouterr().out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_for_people_who_watch(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Terminal()
    monkeypatch.setattr("sys.stderr", watched)
    assert run(folder, "--format", "csv") == 0
    assert "reading files" in watched.getvalue()
    assert capsys.readouterr().out.startswith("key,rank,")
