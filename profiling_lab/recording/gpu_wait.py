# SPDX-License-Identifier: Apache-2.0
"""Synchronise with the GPU so that records are complete, without breaking a CUDA graph capture.

This uses the driver API, so it works for every library: PyTorch, CuPy, Numba and JAX all use a device's
primary context. A context that the program created itself is synchronised if it is current on the calling
thread.

Synchronising a context while a thread captures a graph in it fails and breaks the capture. In this case only
streams that are not capturing can be synchronised, on a thread with the relaxed capture mode.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NOT_CAPTURING = 0  # CU_STREAM_CAPTURE_STATUS_NONE
_DEFAULT_STREAM = 0


def wait_for_gpu(*, unseen_captures: bool = False) -> str:
    """Wait until running kernels have ended. Returns "" or the reason why that failed.

    unseen_captures: another thread may be in a capture that began before the recording.
    """
    torch: Any = sys.modules.get("torch")
    cuda: Any = getattr(torch, "cuda", None)
    uses_torch = cuda is not None and cuda.is_initialized()
    try:
        if uses_torch and cuda.is_current_stream_capturing():
            return ""  # synchronising would break the capture, and nothing runs
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return ""  # no GPU is used in this process
    except Exception as error:
        return str(error)
    try:
        for device, context in _contexts(driver):
            streams = [_DEFAULT_STREAM]
            if uses_torch and device is not None:
                streams.append(int(cuda.current_stream(device).cuda_stream))
            _wait(driver, context, streams, unseen_captures)
    except Exception as error:
        return str(error)
    return ""


def _contexts(driver: Any) -> Iterator[tuple[int | None, ctypes.c_void_p]]:
    """The contexts in use, each retained during the iteration: primary contexts, and the current one."""
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return  # the driver was never initialised
    current = ctypes.c_void_p()
    _do(driver, "cuCtxGetCurrent", ctypes.byref(current))
    seen = []
    for device in range(count.value):
        flags, active = ctypes.c_uint(), ctypes.c_int()
        _do(driver, "cuDevicePrimaryCtxGetState", device, ctypes.byref(flags), ctypes.byref(active))
        if not active.value:
            continue
        context = ctypes.c_void_p()
        _do(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            seen.append(context.value)
            yield device, context
        finally:
            driver.cuDevicePrimaryCtxRelease_v2(device)
    if current.value and current.value not in seen:
        yield None, current


def _wait(driver: Any, context: ctypes.c_void_p, streams: list[int], unseen_captures: bool) -> None:
    from profiling_lab import _recorder

    _do(driver, "cuCtxPushCurrent_v2", context)
    try:
        if not unseen_captures and not _recorder.captures_under_way():
            _do(driver, "cuCtxSynchronize")
            return
        # Work on other streams may still run; work that ends later is not in the window.
        with _exempt_from_captures(driver):
            for stream in dict.fromkeys(streams):
                state = ctypes.c_int()
                # The query fails on the default stream while a capture is in progress that it would wait for.
                # A query does not break that capture, a synchronisation would.
                asked = driver.cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(state))
                if asked == 0 and state.value == _NOT_CAPTURING:
                    _do(driver, "cuStreamSynchronize", ctypes.c_void_p(stream))
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


@contextmanager
def _exempt_from_captures(driver: Any) -> Iterator[None]:
    mode = ctypes.c_int(_RELAXED)
    if driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) != 0:
        raise RuntimeError(
            "another thread captures a CUDA graph, and the driver has no cuThreadExchangeStreamCaptureMode"
        )
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def _do(driver: Any, call: str, *arguments: Any) -> None:
    """Raises RuntimeError with the driver's error name."""
    if code := getattr(driver, call)(*arguments):
        name = ctypes.c_char_p()
        known = driver.cuGetErrorName(code, ctypes.byref(name)) == 0 and name.value
        raise RuntimeError(f"{call.removesuffix('_v2')}: {known.decode() if known else f'error {code}'}")
