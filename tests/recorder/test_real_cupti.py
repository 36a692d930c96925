# SPDX-License-Identifier: Apache-2.0
"""What can be said of the real libcupti without a GPU: it loads, steps through records, and has no driver."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from profiling_lab.recording import libcupti


@pytest.fixture(scope="module")
def real_cupti() -> str:
    found = [path for path in libcupti.candidates() if Path(path).is_file()]
    if not found:
        pytest.skip("no libcupti is installed")
    return found[0]


def has_driver() -> bool:
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except OSError:
        return False


def test_its_own_stepping_finds_our_records(run: Any, query: Any, real_cupti: str) -> None:
    """Sizes of all record kinds are the library's, so this holds for every installed version."""
    version = ctypes.c_uint32()
    ctypes.CDLL(real_cupti).cuptiGetVersion(ctypes.byref(version))
    if version.value < 130000 or version.value >= 130100:
        pytest.skip(f"the fake writes records of CUPTI 13.0, installed is {version.value}")
    run(
        """
with profiling_lab.record(OUT) as recorder:
    for i in range(50):
        now = time.time_ns()
        fake.kernel(f"k{i}", ns=i)
        fake.copy(nbytes=i)
        fake.memset(fake.call(SET), now, now + 1, i, i)
        fake.call(STREAM_SYNC)
        fake.peer_copy(fake.call(COPY), now, now + 3, i)
        fake.graph(fake.call(GRAPH), now, now + 4, i)
assert recorder.summary.dropped == 0
""",
        env={"FAKE_CUPTI_STEPPER": real_cupti},
    )
    for table, count in {
        "KERNEL": 50,
        "MEMCPY": 100,
        "MEMSET": 50,
        "SYNCHRONIZATION": 50,
        "GRAPH_TRACE": 50,
    }.items():
        assert query(f"SELECT count(*) FROM CUPTI_ACTIVITY_KIND_{table}") == [(count,)]
    durations = query(
        "SELECT value, end - start FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName"
    )
    assert sorted(durations, key=lambda row: row[1]) == [(f"k{i}", i) for i in range(50)]


def test_without_a_driver_it_says_so_and_records_the_rest(run: Any, query: Any, real_cupti: str) -> None:
    if has_driver():
        pytest.skip("this machine has a CUDA driver")
    run(
        """
os.environ["PROFILING_LAB_CUPTI"] = os.environ["REAL"]
with profiling_lab.record(OUT) as recorder: pass
reason = recorder.summary.reasons["gpu"]
assert reason == "no CUDA driver was found (or it cannot be initialised)", reason
""",
        env={"REAL": real_cupti},
    )
    meta = dict(query("SELECT name, value FROM PYREC_META"))
    assert meta["gpu"] == "off" and meta["cupti_path"] == real_cupti and int(meta["cupti_version"]) > 0


def test_the_classified_calls_are_the_ones_that_matter(real_cupti: str) -> None:
    """By name, from the library's own list: launches, copies, sets, waits and memory, nothing else."""
    library = ctypes.CDLL(real_cupti)
    name = ctypes.c_char_p()
    names = set()
    for domain in (1, 2):
        for cbid in range(1, 4096):
            if library.cuptiGetCallbackName(domain, cbid, ctypes.byref(name)) == 0 and name.value:
                names.add(name.value.decode())
    from profiling_lab import _recorder

    by_class: dict[str, set[str]] = {}
    for call in names:
        by_class.setdefault(_recorder.classify(call), set()).add(call)
    ignored = by_class.pop("none")
    assert set(by_class) == {"launch", "graph", "copy", "set", "sync", "memory", "wait"}
    for expected, kind in {
        "cudaLaunchKernel_v7000": "launch", "cudaLaunchKernelExC_v11060": "launch",
        "cuLaunchKernelEx": "launch",
        "cudaGraphLaunch_v10000": "graph", "cuGraphLaunch_ptsz": "graph", "cudaMemcpyAsync_v3020": "copy",
        "cuMemcpyHtoDAsync_v2": "copy", "cudaMemsetAsync_v3020": "set", "cudaDeviceSynchronize_v3020": "sync",
        "cuStreamSynchronize": "sync", "cudaMalloc_v3020": "memory", "cuMemAlloc_v2": "memory",
        "cudaStreamWaitEvent_v3020": "wait",
    }.items():  # fmt: skip
        assert expected in by_class[kind]
    chatter = "cudaGetLastError_v3020 cudaSetDevice_v3020 cudaEventQuery_v3020 cudaEventRecord_v3020"
    assert {*chatter.split(), "cudaStreamIsCapturing_v10000", "cuLaunchHostFunc"} <= ignored
    assert len(ignored) > 2 / 3 * len(names)
