# SPDX-License-Identifier: Apache-2.0
"""Waiting for what was launched, so that its records are complete: never at the price of a graph's capture.

The driver is asked, so that it does not matter who launched: PyTorch, CuPy, Numba and JAX all work in a
device's primary context. A context that the program made itself is waited for if it is the calling thread's.

Waiting for a context while any thread captures a graph in it fails, and breaks the capture. Then only streams
that capture nothing can be waited for, on a thread that is exempt from the capture's rules.
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
    """Let running kernels end. Returns "" or why that could not be: a broken device must not keep us.

    unseen_captures: another thread may be in a capture that began before the recorder could see it.
    """
    torch: Any = sys.modules.get("torch")
    cuda: Any = getattr(torch, "cuda", None)
    uses_torch = cuda is not None and cuda.is_initialized()
    try:
        if uses_torch and cuda.is_current_stream_capturing():
            return ""  # waiting would break the capture, and nothing runs
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return ""  # nobody in this process uses a GPU
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
    """The contexts in use, each held while it is looked at: devices' primary ones, and the thread's own."""
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
        # Work on other streams may still run, and what ends after this is not in the window.
        with _exempt_from_captures(driver):
            for stream in dict.fromkeys(streams):
                state = ctypes.c_int()
                # An error is the default stream's answer where a capture is under way that it would wait for;
                # asking does no harm to that capture, waiting would.
                asked = driver.cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(state))
                if asked == 0 and state.value == _NOT_CAPTURING:
                    _do(driver, "cuStreamSynchronize", ctypes.c_void_p(stream))
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


@contextmanager
def _exempt_from_captures(driver: Any) -> Iterator[None]:
    mode = ctypes.c_int(_RELAXED)
    if driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) != 0:
        raise RuntimeError("another thread captures a CUDA graph, and the driver knows no exemption")
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def _do(driver: Any, call: str, *arguments: Any) -> None:
    """Raises RuntimeError with the driver's name for what went wrong."""
    if code := getattr(driver, call)(*arguments):
        name = ctypes.c_char_p()
        known = driver.cuGetErrorName(code, ctypes.byref(name)) == 0 and name.value
        raise RuntimeError(f"{call.removesuffix('_v2')}: {known.decode() if known else f'error {code}'}")
