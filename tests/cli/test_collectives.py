# SPDX-License-Identifier: Apache-2.0
"""profiling-lab collectives"""

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

DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The job on two H200, with a file per rank."""
    return unpacked("ddp_h200", tmp_path)


def unpacked(name: str, tmp_path: Path) -> Path:
    job = tmp_path / "job"
    job.mkdir()
    for rank in range(2):
        file = f"run.rank{rank}.sqlite"
        (job / file).write_bytes(gzip.decompress((DATA / name / f"{file}.gz").read_bytes()))
    return job


def run(*arguments: object) -> int:
    return main(["collectives", *map(str, arguments), "--jobs", "1"])


def test_table_of_one_rank(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder / "run.rank0.sqlite") == 0
    out, err = capsys.readouterr()
    assert "78 collectives, busy 127.311 ms: 20.144 ms exposed (15.8 %" in out and err == ""
    lines = [line.strip() for line in out.splitlines()]
    (row,) = (line for line in lines if line.startswith("AllReduce"))
    assert row.split() == [
        "AllReduce", "c14409f24c8e0eb2", "2", "73", "16.0", "MiB", "126.560", "19.393", "107.167",
        "10.6", "GB/s", "10.6", "GB/s",
    ]  # fmt: skip
    assert "communication launched by autograd hooks" in lines[lines.index(row) + 1]
    (row,) = (line for line in lines if line.startswith("Broadcast") and "64.0 MiB" in line)
    assert lines[lines.index(row) + 1] == "train_ddp.py:41 main"
    assert "spread" not in out and "clocks" not in out, "one rank shows nothing of others"


def test_each_kind_of_collective_has_the_bytes_that_the_program_sends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recording of two H200; the lines and sizes are those of collectives.py in its folder."""
    assert run(unpacked("collectives_h200", tmp_path), "--format", "json", "--limit", 0) == 0
    rows = json.loads(capsys.readouterr().out)["data"]["rows"]
    assert {(row["kind"], row["line"]): (row["size_median_bytes"], row["count"]) for row in rows} == {
        ("AllToAll", 11): (16 << 20, 20),
        ("AllGather", 17): (8 << 20, 20),
        ("ReduceScatter", 23): (8 << 20, 20),
        ("SendRecv", 29): (4 << 20, 10),
        ("SendRecv", 31): (4 << 20, 10),
        ("SendRecv", 37): (4 << 20, 20),
        ("Broadcast", 60): (16 << 20, 20),
        ("Reduce", 61): (8 << 20, 20),
        ("AllToAll", 63): (8 << 20, 20),
        ("AllGather", 64): (4 << 20, 20),
        ("AllReduce", 65): (8 << 20, 20),
        ("AllReduce", 68): (4, 2),
    }
    late = next(row for row in rows if row["line"] == 11)
    assert late["last_rank"] == 1 and late["spread_ns"] > 100_000, "rank 1 computes longer before it"
    assert len({row["group"] for row in rows}) == 2, "one all-reduce has a group of its own"


def test_table_of_a_job(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--lines", 0) == 0
    out = capsys.readouterr().out
    assert "2 ranks in 2 files" in out and "156 collectives, busy 138.519 ms, summed over 2 ranks" in out
    assert "clocks: moved by up to" in out and "train_ddp.py:41" not in out
    (row,) = (line for line in out.splitlines() if line.startswith("AllReduce"))
    assert row.split()[-4:] == ["992.261", "1", "128.6", "GB/s"]


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--by", "kind", "--format", "json") == 0
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["command"] == "collectives" and envelope["trace"]["by"] == "kind"
    assert envelope["data"]["summary"]["calls"] == 156 == sum(r["count"] for r in envelope["data"]["rows"])
    reduce, broadcast, _ = envelope["data"]["rows"]
    assert (reduce["key"], reduce["group_size"], reduce["last_rank"]) == ("AllReduce", 2, 1)
    assert reduce["busy_ns"] == reduce["exposed_ns"] + reduce["hidden_ns"]
    assert reduce["wait_ns"] + reduce["transfer_ns"] < reduce["total_ns"], "of the matched ones alone"
    assert broadcast["spread_ns"] is broadcast["arrived_bus_bytes_per_s"] is None
    assert [line["line"] for line in broadcast["lines"]] == [41, 29]
    assert envelope["coverage"]["ranks"] == 2


def test_other_forms_and_groupings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--by", "collective", "--format", "csv", "--limit", 0) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == len({row["key"] for row in rows}) == 72 + 2 + 8, "matched, and of one rank"
    assert {row["step"] for row in rows} == {"", *map(str, range(9))}
    assert run(folder, "--by", "group", "--format", "md") == 0
    assert "| Broadcast<br>99.1 % train\\_ddp.py:41 main" in capsys.readouterr().out
    assert run(folder, "--by", "collective", "--limit", 3) == 0
    assert "3 of 82 rows" in capsys.readouterr().out


def test_part_of_the_job(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = {"--step 3": 16, "--rank 1": 78, "--device 0": 78, "--rank 0 --step 2:4": 16}
    for options, calls in parts.items():
        assert run(folder, *options.split(), "--format", "json") == 0
        assert json.loads(capsys.readouterr().out)["data"]["summary"]["calls"] == calls
    assert run(folder, "--step", "3", "--by", "collective", "--format", "json") == 0
    assert {row["step"] for row in json.loads(capsys.readouterr().out)["data"]["rows"]} == {3}
    assert run(folder, "--rank", 5) == 2
    assert "--rank 5: the job has rank 0, 1" in capsys.readouterr().err
    assert run(folder, "--step", 99) == 2


def test_unknown_is_said_and_shown_as_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = TraceBuilder().launch("gemm", 9000).launch(KERNEL, 5000).write(tmp_path / "run.sqlite")
    assert run(path) == 0
    out = capsys.readouterr().out
    assert "no message size (1 of 1 collective) or no group size (1)" in out and "include-blobs" in out
    (row,) = (line for line in out.splitlines() if line.startswith("AllReduce"))
    assert row.split() == ["AllReduce", "-", "-", "1", "-", "5.000", "5.000", "0", "-", "-"]
    run(path, "--format", "csv")
    (data,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    for name in ("size_total_bytes", "size_median_bytes", "group_size", "bus_bytes_per_s", "spread_ns"):
        assert data[name] == "", name


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without = TraceBuilder().launch("gemm", 1000).write(tmp_path / "none.sqlite")
    assert run(without) == 3
    assert "none.sqlite: no collectives: none of the 1 GPU operations" in capsys.readouterr().err
    assert run(TraceBuilder().call("cudaMalloc").write(tmp_path / "empty.sqlite")) == 3
    assert run(tmp_path / "nowhere.sqlite") == 4
    (tmp_path / "broken.sqlite").write_text("{}")
    assert run(tmp_path / "broken.sqlite") == 4
    with pytest.raises(SystemExit) as wrong:
        run(without, "--by", "rank")
    assert wrong.value.code == 2
    assert capsys.readouterr().out == ""


def test_a_broken_file_is_reported_and_the_rest_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = Job(ranks=3, steps=3).write(tmp_path, facts=True)
    paths[1].write_bytes(paths[1].read_bytes()[:5000])
    assert run(*paths) == 4
    out, err = capsys.readouterr()
    assert err.startswith("profiling-lab collectives: ") and "run.rank1.sqlite" in err
    assert "2 ranks of 3 in 2 files" in out and "missing: rank 1" in out and "12 collectives" in out
