# SPDX-License-Identifier: Apache-2.0
"""Functions on several ranks of this machine, over gloo: results, failures, and that no process is left."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from profiling_lab.errors import UsageError
from profiling_lab.measure import links, local_ranks
from profiling_lab.measure.local_ranks import RankError

pytest.importorskip("torch")

FUNCTIONS = """
import os, time
import torch
import torch.distributed as dist


def total(asked):
    x = torch.tensor([float(dist.get_rank() + asked)])
    dist.all_reduce(x)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    print("noise")
    return [x.item(), *(int(os.environ[name]) for name in names), dist.get_backend()]


def fails(asked):
    if dist.get_rank() == 1:
        raise ValueError("there is no such batch")
    dist.barrier()


def waits(asked):
    open(f"{asked}/{os.getpid()}", "w")
    time.sleep(600)
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "rank_functions.py").write_text(FUNCTIONS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "rank_functions"


def test_each_rank_returns_its_own(functions: str) -> None:
    found = local_ranks.run(f"{functions}:total", 10, 2, device="cpu")
    assert found == [[21.0, 0, 0, 2, "gloo"], [21.0, 1, 1, 2, "gloo"]]


def test_a_rank_that_fails_ends_the_others_and_is_quoted(functions: str) -> None:
    with pytest.raises(RankError, match="a rank failed: ValueError: there is no such batch"):
        local_ranks.run(f"{functions}:fails", None, 2, device="cpu", limit_s=120)


def test_ranks_that_do_not_end_are_ended(functions: str, tmp_path: Path) -> None:
    (folder := tmp_path / "pids").mkdir()
    with pytest.raises(RankError, match="had not ended after 12 s"):
        local_ranks.run(f"{functions}:waits", str(folder), 2, device="cpu", limit_s=12)
    pids = [int(path.name) for path in folder.iterdir()]
    end = time.monotonic() + 30
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < end, "a rank is still there"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    """A zombie has ended; who must wait for it is another question."""
    try:
        return re.search(r"^State:\s+Z", Path(f"/proc/{pid}/status").read_text(), re.M) is None
    except FileNotFoundError:
        return False


def test_wrong_numbers_of_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="at least one rank, got 0"):
        local_ranks.run("a:b", None, 0, device="cpu")
    monkeypatch.setattr(local_ranks, "gpus", lambda: 1)
    with pytest.raises(UsageError, match="expected a GPU for each of 2 ranks, found 1"):
        local_ranks.run("a:b", None, 2)


def test_counting_gpus_leaves_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    monkeypatch.delenv(name, raising=False)
    assert local_ranks.gpus() >= 0 and name not in os.environ
    monkeypatch.setenv(name, "0")
    assert local_ranks.gpus() >= 0 and os.environ[name] == "0"


def test_sizes_and_groups() -> None:
    assert links.sizes(1 << 30)[0] == 1024 and links.sizes(1 << 30)[-1] == 1 << 30
    assert links.sizes(100_000) == [1024, 4096, 16384, 65536]
    assert [links.group_sizes(ranks) for ranks in (2, 3, 4, 8)] == [[2], [2, 3], [2, 4], [2, 4, 8]]


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_collective_is_timed_for_every_size(ranks: int) -> None:
    first, *others = local_ranks.run(
        "profiling_lab.measure.links:on_each_rank", {"largest_bytes": 8 << 10}, ranks, device="cpu"
    )
    assert others == [[]] * (ranks - 1), "rank 0 alone has the table"
    found = {(row["kind"], row["ranks"], row["size_bytes"]): row for row in first}
    for group in links.group_sizes(ranks):
        whole = [size // 4 // group * group * 4 for size in (1024, 4096)]
        for kind in links.KINDS:
            sizes = [size // group if kind in links.OF_A_PART else size for size in whole]
            assert [size for k, g, size in found if (k, g) == (kind, group)] == sizes
    assert all(row["time_ns"] > 0 and row["spread_ns"] >= 0 and row["calls"] >= 2 for row in first)


MATRIX = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNV18\tSYS\tPIX\t0-47\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tSYS\tNODE\t0-47\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tSYS\tNODE\t0-47\t0\t\tN/A
GPU3\tSYS\tSYS\tSYS\t X \tNODE\t48-95\t1\t\tN/A
NIC0\tPIX\tNODE\tNODE\tNODE\t X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def test_the_matrix_of_nvidia_smi_names_the_links() -> None:
    assert links.links_in(MATRIX, 2) == "NV18"
    assert links.links_in(MATRIX, 4) == "NV18, SYS"
    assert links.links_in("no devices were found", 2) == ""


@pytest.mark.multigpu
def test_what_gpus_reach() -> None:
    asked = {"largest_bytes": 16 << 20}
    rows = local_ranks.run("profiling_lab.measure.links:on_each_rank", asked, 2)[0]
    times = {row["size_bytes"]: row["time_ns"] for row in rows if row["kind"] == "AllReduce"}
    assert len(times) == 8 and 1_000 < times[1024] < 1_000_000
    assert times[16 << 20] > times[1024], "bytes take time"
    assert {row["kind"] for row in rows} == set(links.KINDS), "NCCL has them all"
