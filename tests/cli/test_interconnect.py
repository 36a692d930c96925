# SPDX-License-Identifier: Apache-2.0
"""profiling-lab interconnect"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiling_lab.analysis.collectives.links import Links, LinkTime, load, save
from profiling_lab.cli import main
from profiling_lab.measure import links as measured
from profiling_lab.measure import local_ranks
from profiling_lab.measure.device import Machine

pytest.importorskip("torch")

DATA = Path(__file__).resolve().parents[1] / "data"


def rows(*, ranks: int = 2, ns_per_mib: int = 3_500) -> list[dict[str, Any]]:
    """All-reduces and broadcasts of a link with a latency of 20 us."""
    return [
        {"kind": kind, "ranks": ranks, "size_bytes": 1024 << (2 * i), "spread_ns": 100, "calls": 5,
         "time_ns": 20_000 + ns_per_mib * (1024 << (2 * i)) // (1 << 20)}
        for kind in ("AllReduce", "Broadcast")
        for i in range(11)
    ]  # fmt: skip


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A machine with two GPUs whose measurement takes no time; what is asked of it."""
    asked: list[tuple[Any, ...]] = []

    def run(call: str, what: Any, ranks: int, *, device: str) -> list[Any]:
        asked.append((call, what, ranks, device))
        return [rows(ranks=ranks), *[[]] * (ranks - 1)]

    monkeypatch.setattr(local_ranks, "run", run)
    monkeypatch.setattr(local_ranks, "gpus", lambda: 2)
    monkeypatch.setattr(measured, "backend", lambda on_cpu: "gloo" if on_cpu else "nccl 2.28.9")
    monkeypatch.setattr(measured, "topology", lambda ranks: "NV18")
    here = Machine("NVIDIA H200", "580.1", "2.11", None, "13.0", None, "2026-11-24T12:00:00Z")
    monkeypatch.setattr("profiling_lab.measure.device.machine", lambda device: here)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    return asked


def test_a_fit_per_collective(gpus: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["interconnect"]) == 0
    out = capsys.readouterr().out
    assert "2 x NVIDIA H200, NV18, nccl 2.28.9, driver 580.1: measured 2026-11-24" in out
    (row,) = (line.split() for line in out.splitlines() if line.startswith("AllReduce"))
    assert row[:4] == ["AllReduce", "2", "11", "20.000"]
    assert row[4:6] == ["299.6", "GB/s"], "1 MiB in 3.5 us"
    assert gpus == [("profiling_lab.measure.links:on_each_rank", {"largest_bytes": 1 << 30}, 2, "cuda")]


def test_kept_and_printed_again(
    gpus: list[tuple[Any, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "links.json")
    assert main(["interconnect", "-o", file, "--ranks", "2", "--largest", "64"]) == 0
    first = capsys.readouterr().out
    assert gpus[0][1] == {"largest_bytes": 64 << 20}
    assert main(["interconnect", file]) == 0
    assert capsys.readouterr().out == first and len(gpus) == 1, "nothing is measured"
    assert main(["interconnect", file, "--by", "size", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["trace"]["topology"] == "NV18" and len(data["data"]["rows"]) == 22
    assert data["data"]["rows"][0]["time_ns"] == 20_003
    assert main(["interconnect", file, "--by", "size", "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("kind,ranks,size_bytes,time_ns,")


def test_a_file_is_not_replaced_by_accident(
    gpus: list[tuple[Any, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "links.json"
    file.write_text("mine")
    assert main(["interconnect", "-o", str(file)]) == 2
    assert "exists already" in capsys.readouterr().err and file.read_text() == "mine" and not gpus
    assert main(["interconnect", "-o", str(file), "--overwrite"]) == 0
    assert load(file).gpu == "NVIDIA H200"
    assert main(["interconnect", str(file), "-o", str(tmp_path / "other.json")]) == 2
    assert "got both" in capsys.readouterr().err


def test_one_gpu_has_no_link(
    gpus: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local_ranks, "gpus", lambda: 1)
    assert main(["interconnect"]) == 2
    assert "expected at least two ranks, got 1: a link has two ends" in capsys.readouterr().err


def test_a_rank_of_a_job_measures_with_the_others(
    gpus: list[tuple[Any, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    joined = []

    def in_this_job(function: Any, asked: Any, *, device: str) -> Any:
        joined.append((function, asked, device))
        return rows(ranks=16) if rank == 0 else []

    monkeypatch.setattr(local_ranks, "in_this_job", in_this_job)
    for name, value in (("WORLD_SIZE", "16"), ("MASTER_ADDR", "first")):
        monkeypatch.setenv(name, value)
    for rank in (1, 0):
        monkeypatch.setenv("RANK", str(rank))
        assert main(["interconnect", "-o", str(tmp_path / "links.json")]) == 0
        out = capsys.readouterr().out
        assert (tmp_path / "links.json").exists() == (rank == 0) == ("16 x NVIDIA H200" in out)
    assert joined == [(measured.on_each_rank, {"largest_bytes": 1 << 30}, "cuda")] * 2 and not gpus


def test_gloo_on_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing replaced: processes, gloo, file, table."""
    file = tmp_path / "links.json"
    assert main(["interconnect", "--cpu", "--ranks", "2", "--largest", "1", "-o", str(file)]) == 0
    out = capsys.readouterr().out
    assert "gloo: measured" in out and "AllReduce" in out
    assert {time.kind for time in load(file).times} >= {"AllReduce", "Broadcast", "SendRecv"}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (folder := tmp_path / "job").mkdir()
    for rank in range(2):
        name = f"run.rank{rank}.sqlite"
        (folder / name).write_bytes(gzip.decompress((DATA / "ddp_h200" / f"{name}.gz").read_bytes()))
    return folder


def saved(path: Path, **changes: Any) -> str:
    times = tuple(LinkTime(**row) for row in rows())
    links = Links("NVIDIA H200", "2026-11-24", "nccl 2.28.9", "580.1", "2.11", "NV18", times)
    save(replace(links, **changes), path)
    return str(path)


def test_collectives_beside_what_the_links_reach(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(tmp_path / "links.json")
    arguments = ["collectives", str(job), "--jobs", "1", "--links", file]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "links: what 2 x NVIDIA H200, NV18, nccl 2.28.9, driver 580.1: measured 2026-11-24, reach" in out
    reduce = next(line.split() for line in out.splitlines() if line.startswith("AllReduce"))
    gather = next(line.split() for line in out.splitlines() if line.startswith("AllGather"))
    assert reduce[-2:] != ["-", "-"] and gather[-2:] == ["-", "-"], "all-gathers were not measured"
    assert main([*arguments, "--format", "json", "--by", "kind"]) == 0
    row = json.loads(capsys.readouterr().out)["data"]["rows"][0]
    # Messages of 16 MiB need 20 + 16 * 3.5 us, and took 16 MiB by 128.6 GB/s from the last arrival on.
    assert row["links_bus_bytes_per_s"] == pytest.approx((16 << 20) / 76e-6, rel=0.02)
    assert row["links_reached_frac"] == pytest.approx(
        row["arrived_bus_bytes_per_s"] / row["links_bus_bytes_per_s"], rel=0.02
    )
    assert main(["collectives", str(job), "--jobs", "1", "--format", "json"]) == 0
    bare = json.loads(capsys.readouterr().out)
    assert bare["trace"]["links"] is None and bare["data"]["rows"][0]["links_reached_frac"] is None


def test_links_of_other_gpus_are_refused(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(tmp_path / "links.json", gpu="NVIDIA A100")
    assert main(["collectives", str(job), "--jobs", "1", "--links", file]) == 2
    err = capsys.readouterr().err
    assert "measured between NVIDIA A100, but the recording is from NVIDIA H200" in err
    (tmp_path / "links.json").write_text("{}")
    assert main(["collectives", str(job), "--jobs", "1", "--links", file]) == 4
    assert "does not hold times of links" in capsys.readouterr().err
