# SPDX-License-Identifier: Apache-2.0
"""One table says what the calls of the CUDA API do: csrc/trace/cuda_calls.h, for recorder and analysis."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from profiling_lab import _analysis
from profiling_lab.trace.cuda_calls import CudaCall

# Written twice: the names of the recorder's classes as it gives them, and the kinds that belong to each.
CLASS_OF = {
    "launch": {CudaCall.LAUNCH},
    "graph": {CudaCall.GRAPH_LAUNCH},
    "copy": {CudaCall.COPY, CudaCall.BLOCKING_COPY, CudaCall.PREFETCH},
    "set": {CudaCall.SET},
    "sync": {CudaCall.STREAM_SYNC, CudaCall.EVENT_SYNC, CudaCall.DEVICE_SYNC},
    "wait": {CudaCall.STREAM_WAIT_EVENT},
    "memory": {CudaCall.DEVICE_MEMORY, CudaCall.POOL_MEMORY, CudaCall.UNMAP_MEMORY},
}


def kind(name: str) -> CudaCall:
    return CudaCall(_analysis.cuda_call(name))


def test_python_has_the_kinds_of_the_table(repo: Path) -> None:
    text = (repo / "csrc/trace/cuda_calls.h").read_text()
    body = text[text.index("enum class CudaCall") : text.index("};")]
    kinds = [re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper() for name in re.findall(r"^  k(\w+),", body, re.M)]
    assert kinds == [kind.name for kind in CudaCall]
    assert {number for _, _, number in _analysis.CUDA_CALLS} == {int(kind) for kind in CudaCall}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cudaLaunchKernel", CudaCall.LAUNCH),
        ("cuLaunchKernelEx", CudaCall.LAUNCH),
        ("__cudaLaunchKernel", CudaCall.LAUNCH),
        ("cudaLaunchHostFunc_v10000", CudaCall.OTHER),
        ("cudaMemcpy_v3020", CudaCall.BLOCKING_COPY),
        ("cudaMemcpyAsync_ptsz_v7000", CudaCall.COPY),
        ("cudaMemcpyBatchAsync_v13000", CudaCall.COPY),
        ("cuMemcpyHtoD_v2", CudaCall.BLOCKING_COPY),
        ("cuMemcpyHtoDAsync_v2_ptsz", CudaCall.COPY),
        ("cuCtxSynchronize", CudaCall.DEVICE_SYNC),
        ("cudaThreadSynchronize_v3020", CudaCall.DEVICE_SYNC),
        ("cudaEventSynchronize", CudaCall.EVENT_SYNC),
        ("hipStreamSynchronize", CudaCall.STREAM_SYNC),
        ("cudaStreamWaitEvent_ptsz", CudaCall.STREAM_WAIT_EVENT),
        ("cudaEventQuery", CudaCall.POLL),
        ("cudaMalloc", CudaCall.DEVICE_MEMORY),
        ("cudaMallocAsync_ptsz", CudaCall.POOL_MEMORY),
        ("cudaHostAlloc", CudaCall.PINNED_MEMORY),
        ("cuMemUnmap", CudaCall.UNMAP_MEMORY),
        ("cuModuleLoadDataEx", CudaCall.LOAD_CODE),
        ("cudaGetDevice", CudaCall.OTHER),
        ("cublasGemmEx", CudaCall.OTHER),
        ("ncclAllReduce", CudaCall.OTHER),
        ("", CudaCall.OTHER),
        ("_", CudaCall.OTHER),
    ],
)
def test_a_name_tells_what_a_call_does(name: str, expected: CudaCall) -> None:
    assert kind(name) is expected


def test_the_recorder_has_its_classes_from_the_table() -> None:
    recorder = pytest.importorskip("profiling_lab._recorder")
    classes = {kind: name for name, kinds in CLASS_OF.items() for kind in kinds}
    for row, api, number in _analysis.CUDA_CALLS:
        for prefix in ("cu",) if api == "d" else ("cuda",) if api == "r" else ("cu", "cuda"):
            name = prefix + (row[:-1] if row.endswith("$") else row + "Later")
            assert int(kind(name)) == number, f"{name}: an earlier row takes it"
            assert recorder.classify(name) == classes.get(CudaCall(number), "none"), name
