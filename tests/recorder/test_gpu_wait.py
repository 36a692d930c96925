# SPDX-License-Identifier: Apache-2.0
"""The recorder waits for whoever launched, through the driver: here a fake one that notes what it does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

FAKE_DRIVER = r"""
#include <cstdint>
#include <cstring>
#include <string>
#define PLAB_API extern "C" __attribute__((visibility("default")))
// Contexts are 100 + device; one that the program made is 7.
static std::string log;
static int devices, active, failing, blocking_capture, mode;
static intptr_t current, stack[8];
static int depth, held;
static void note(const std::string& what) { log += (log.empty() ? "" : " ") + what; }
PLAB_API const char* fake_log() { return log.c_str(); }
PLAB_API int fake_left() { return depth * 100 + held * 10 + mode; }
PLAB_API void fake_set(int count, int mask, int own, int fails, int captures) {
  devices = count, active = mask, current = own, failing = fails, blocking_capture = captures;
}
PLAB_API int cuDeviceGetCount(int* count) { return devices < 0 ? 3 : (*count = devices, 0); }
PLAB_API int cuCtxGetCurrent(void** context) { return *context = (void*)current, 0; }
PLAB_API int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* on) {
  return *flags = 0, *on = active >> device & 1, 0;
}
PLAB_API int cuDevicePrimaryCtxRetain(void** context, int device) {
  return ++held, *context = (void*)(intptr_t)(100 + device), 0;
}
PLAB_API int cuDevicePrimaryCtxRelease_v2(int) { return --held, 0; }
PLAB_API int cuCtxPushCurrent_v2(void* context) { return stack[depth++] = (intptr_t)context, 0; }
PLAB_API int cuCtxPopCurrent_v2(void** context) { return *context = (void*)stack[--depth], 0; }
PLAB_API int cuCtxSynchronize() {
  note("context:" + std::to_string(stack[depth - 1]));
  return failing;
}
PLAB_API int cuThreadExchangeStreamCaptureMode(int* other) {
  if (blocking_capture == 2) return 1;  // an older driver
  const int before = mode;
  return mode = *other, *other = before, 0;
}
PLAB_API int cuStreamIsCapturing(void* stream, int* state) {
  *state = (intptr_t)stream == 66;
  return !stream && blocking_capture ? 906 : 0;
}
PLAB_API int cuStreamSynchronize(void* stream) {
  note("stream:" + std::to_string((intptr_t)stream) + (mode == 2 ? "" : " not exempt"));
  return 0;
}
PLAB_API int cuGetErrorName(int code, const char** name) {
  return code == 700 ? (*name = "CUDA_ERROR_ILLEGAL_ADDRESS", 0) : 1;
}
"""

DRIVE = """
import ctypes
from types import SimpleNamespace
from profiling_lab import _recorder
from profiling_lab.recording.gpu_wait import wait_for_gpu
driver = ctypes.CDLL(os.environ["FAKE_CUDA"])
driver.fake_log.restype = ctypes.c_char_p
def torch_with(stream, capturing=False):
    cuda = SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=lambda: capturing,
                           current_stream=lambda device: SimpleNamespace(cuda_stream=stream))
    sys.modules["torch"] = SimpleNamespace(cuda=cuda)
def waited(why=""):
    assert wait_for_gpu() == why
    assert driver.fake_left() == 0, "a context or the capture mode was left changed"
    return driver.fake_log().decode().split()
"""


@pytest.fixture(scope="session")
def fake_cuda(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("cuda")
    source, library = folder / "cuda.cpp", folder / "libcuda.so.1"
    source.write_text(FAKE_DRIVER)
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    flags = ["-std=c++20", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
    return {"FAKE_CUDA": str(library)}


@pytest.mark.parametrize(
    "devices, in_use, own, waited",
    [
        (2, 0b01, 0, ["context:100"]),
        (3, 0b101, 102, ["context:100", "context:102"]),  # each once
        (1, 0b0, 7, ["context:7"]),  # only a context that the program made
        (1, 0b1, 7, ["context:100", "context:7"]),
        (2, 0b00, 0, []),
        (-1, 0b11, 0, []),  # the driver is loaded, and was never initialised
    ],
)
def test_every_context_in_use_is_waited_for_without_torch(
    run: Any, fake_cuda: dict[str, str], devices: int, in_use: int, own: int, waited: list[str]
) -> None:
    code = (
        f"driver.fake_set({devices}, {in_use}, {own}, 0, 0)\nassert waited() == {waited}, driver.fake_log()"
    )
    run(DRIVE + code, env=fake_cuda)


def test_a_broken_device_is_named_and_blocks_no_other(run: Any, fake_cuda: dict[str, str]) -> None:
    why = "cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS"
    run(DRIVE + f"driver.fake_set(1, 1, 0, 700, 0)\nassert waited({why!r}) == ['context:100']", env=fake_cuda)
    unknown = "cuCtxSynchronize: error 12345"
    run(DRIVE + f"driver.fake_set(1, 1, 0, 12345, 0)\nwaited({unknown!r})", env=fake_cuda)


def test_a_process_without_the_driver_gets_none(run: Any) -> None:
    run("""
from profiling_lab.recording.gpu_wait import wait_for_gpu
assert wait_for_gpu() == "" and "libcuda" not in open("/proc/self/maps").read()
""")


CAPTURES = """
_recorder.captures_under_way = lambda: 1
driver.fake_set(1, 1, 0, 0, {blocking})
{torch}
assert waited() == {waited}, driver.fake_log()
"""


@pytest.mark.parametrize(
    "torch, blocking, waited",
    [
        ("", 0, ["stream:0"]),
        ("", 1, []),  # the default stream would wait for the stream that captures
        ("torch_with(55)", 0, ["stream:0", "stream:55"]),
        ("torch_with(55)", 1, ["stream:55"]),
        ("torch_with(66)", 0, ["stream:0"]),  # it captures itself
        ("torch_with(0)", 0, ["stream:0"]),
        ("torch_with(66, capturing=True)", 0, []),  # this very thread captures
    ],
)
def test_during_a_capture_only_streams_without_one_are_waited_for(
    run: Any, fake_cuda: dict[str, str], torch: str, blocking: int, waited: list[str]
) -> None:
    run(DRIVE + CAPTURES.format(torch=torch, blocking=blocking, waited=waited), env=fake_cuda)


def test_a_driver_without_the_exemption_is_reported(run: Any, fake_cuda: dict[str, str]) -> None:
    code = """
_recorder.captures_under_way = lambda: 1
driver.fake_set(1, 1, 0, 0, 2)
assert waited("another thread captures a CUDA graph, "
    "and the driver has no cuThreadExchangeStreamCaptureMode") == []
"""
    run(DRIVE + code, env=fake_cuda)


PENDING = {
    "cupy": """
import cupy
spin = cupy.RawKernel('extern "C" __global__ void spin(long long n) {'
                      ' long long t = clock64(); while (clock64() - t < n); }', "spin")
def launch(): spin((1,), (1,), (cupy.int64(200_000_000),))
""",
    "numba": """
import numpy
for old, new in ("row_stack", "vstack"), ("in1d", "isin"), ("trapz", "trapezoid"):
    if not hasattr(numpy, old): setattr(numpy, old, getattr(numpy, new))  # numba-cuda 0.30 wants NumPy 2.4's
from numba import cuda, int64
@cuda.jit
def spin(n, out):
    total = 0.0
    for i in range(n): total += (i % 7) * 0.5
    out[0] = total
out = cuda.device_array(1)
def launch(): spin[1, 1](20_000_000, out)
""",
    "jax": """
import jax, jax.numpy as jnp
@jax.jit
def spin(x): return jax.lax.fori_loop(0, 20_000, lambda i, x: jnp.sin(x) + 1, x)
x = jnp.ones(16)
def launch(): return spin(x)
""",
}


@pytest.mark.gpu
@pytest.mark.parametrize("library", PENDING)
def test_work_in_flight_at_the_end_is_recorded(library: str, run_gpu_without_torch: Any, query: Any) -> None:
    pytest.importorskip(library)
    run_gpu_without_torch(
        PENDING[library]
        + """
launch()
profiling_lab.recording.gpu_wait.wait_for_gpu()  # compiled, and nothing runs
with profiling_lab.record(OUT) as recorder:
    kept = launch()
assert "torch" not in sys.modules
assert recorder.summary.kernels >= 1 and "sync" not in recorder.summary.reasons, recorder.summary
"""
    )
    ((nanoseconds,),) = query("SELECT sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL")
    assert nanoseconds > 1e6


@pytest.fixture
def run_gpu_without_torch(tmp_path: Path) -> Any:
    from recorder.runner import Runner

    return Runner(tmp_path, "pass", {})


def test_captures_that_began_before_anybody_looked(run: Any, fake_cuda: dict[str, str]) -> None:
    """Who attaches to a live process may come in the middle of one: no context is waited for."""
    code = """
driver.fake_set(1, 1, 0, 0, 0)
assert _recorder.captures_under_way() == 0 and wait_for_gpu(unseen_captures=True) == ""
assert driver.fake_log().decode().split() == ["stream:0"], driver.fake_log()
"""
    run(DRIVE + code, env=fake_cuda)
