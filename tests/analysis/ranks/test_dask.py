# SPDX-License-Identifier: Apache-2.0
"""On a Dask cluster the answer is the same as in one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiling_lab.analysis.ranks import JobResult, Options, ranks
from profiling_lab.analysis.ranks.pools import DaskPool, dask_pool
from profiling_lab.errors import UsageError


@pytest.fixture(scope="module")
def dask() -> Iterator[DaskPool]:
    pytest.importorskip("distributed", reason="dask.distributed is not installed")
    with dask_pool("local", jobs=2) as pool:
        yield pool


def test_dask_gives_the_same(many: list[str], serial: JobResult, dask: DaskPool) -> None:
    counts: list[int] = []
    assert ranks(many, pool=dask, done=counts.append) == serial
    assert counts == list(range(1, len(many) + 1))


def test_workers_keep_the_memory_of_the_last_file(dask: DaskPool) -> None:
    """Dask would have them give it back at once, and new pages for every array take time."""
    assert dask.gather(dask.map(os.getenv, ["MALLOC_TRIM_THRESHOLD_"])) == [None]


def test_dask_reports_what_is_broken(many: list[str], tmp_path: Path, dask: DaskPool) -> None:
    (tmp_path / "run.rank3.sqlite").write_bytes(b"SQLite format 3\x00")
    result = ranks([*many[:3], str(tmp_path / "run.rank3.sqlite")], pool=dask)
    assert len(result.rows) == 3 and result.failures[0].exit_code == 4
    with pytest.raises(UsageError, match="regular expression"):
        ranks(many[:2], Options(steps_by="("), pool=dask)


def test_no_scheduler_at_the_address() -> None:
    pytest.importorskip("distributed", reason="dask.distributed is not installed")
    with pytest.raises(UsageError, match="no Dask scheduler"), dask_pool("tcp://127.0.0.1:9", timeout_s=1):
        pass


def test_workers_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would drop the connection at the first task, and the client would wait for others forever."""
    pytest.importorskip("distributed", reason="dask.distributed is not installed")
    (tmp_path / "profiling_lab").mkdir()
    (tmp_path / "profiling_lab" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)  # workers of a local cluster start with this process's path
    sentence = r"worker tcp://\S+ cannot import profiling_lab \(ModuleNotFound"
    with pytest.raises(UsageError, match=sentence), dask_pool("local", jobs=1):
        pass


def test_a_scheduler_without_workers() -> None:
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=None, silence_logs=50) as cluster,
        pytest.raises(UsageError, match="no worker joined the scheduler within 1 s"),
        dask_pool(cluster.scheduler_address, timeout_s=1),
    ):
        pass
