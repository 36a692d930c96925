# SPDX-License-Identifier: Apache-2.0
"""Waiting for what was launched, so that its records are complete: never at the price of a graph's capture.

Waiting for a device while any thread captures a graph on it fails, and breaks the capture. Then only streams
that capture nothing can be waited for, on a thread that is exempt from the capture's rules.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


def wait_for_gpu() -> str:
    """Let running kernels end. Returns "" or why that could not be: a broken device must not keep us."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return ""
    if cuda.is_current_stream_capturing():  # waiting would break the capture, and nothing runs
        return ""
    in_use = getattr(torch._C, "_cuda_hasPrimaryContext", lambda device: device == 0)
    try:
        for device in range(cuda.device_count()):
            if in_use(device):
                _wait(cuda, device)
    except Exception as error:
        return str(error)
    return ""


def _wait(cuda: Any, device: int) -> None:
    from profiling_lab import _recorder

    if not _recorder.captures_under_way():
        cuda.synchronize(device)
        return
    # Work on other streams may still run, and what ends after this is not in the window.
    with _exempt_from_captures():
        cuda.default_stream(device).synchronize()
        cuda.current_stream(device).synchronize()


@contextmanager
def _exempt_from_captures() -> Iterator[None]:
    driver = _driver()
    mode = ctypes.c_int(_RELAXED)
    if driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) != 0:
        raise RuntimeError("another thread captures a CUDA graph, and the driver knows no exemption")
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")
