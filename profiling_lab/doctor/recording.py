# SPDX-License-Identifier: Apache-2.0
"""The requirements of a recording: CUPTI, Python stacks, the autograd link, no other tracing client."""

from __future__ import annotations

import ctypes
import os

from profiling_lab.doctor.check import HealthCheck, absent, broken, ok
from profiling_lab.doctor.machine import driver
from profiling_lab.doctor.package import torch_or_reason
from profiling_lab.recording import autograd_link, libcupti, other_profilers

_NO_RECORDER = "needs _recorder, which is not built"


def check_cupti() -> HealthCheck:
    name = "cupti"
    chosen = os.environ.get(libcupti.OVERRIDE)
    tried = [chosen] if chosen else libcupti.candidates()
    refused = ""
    for path in tried:
        try:
            library = ctypes.CDLL(path)
            version = ctypes.c_uint32()
            if library.cuptiGetVersion(ctypes.byref(version)) == 0:
                return ok(name, f"{_cupti_version(version.value)} at {path}")
        except (OSError, AttributeError) as error:
            refused = refused or str(error)
    advice = f"pip install nvidia-cuda-cupti, or set {libcupti.OVERRIDE} to the path of libcupti"
    if chosen:
        return broken(
            name, f"{libcupti.OVERRIDE} names {chosen}, but: {refused}", f"unset {libcupti.OVERRIDE}"
        )
    machine = driver()
    if isinstance(machine, str) or not machine.gpus:
        return absent(name, "libcupti was not found; it is needed on a machine with a GPU", advice)
    return broken(name, "libcupti was not found: GPU activity cannot be recorded", advice)


def _cupti_version(number: int) -> str:
    """CUPTI numbers its versions by API level up to 12.x, and like the toolkit from 13.0 on."""
    if number < 100_000:
        return f"API {number} (CUDA 12)" if number >= 18 else f"API {number}"
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def check_stacks() -> HealthCheck:
    name = "stacks"
    try:
        from profiling_lab import _recorder
    except ImportError:
        return broken(name, _NO_RECORDER, "see _recorder")
    if _recorder.recording():
        return ok(name, "in use by the running recording")
    stacks = _recorder.python_stacks
    try:
        stacks.start()
    except RuntimeError as error:
        return broken(
            name, str(error), "recordings have no Python lines with this interpreter; use another one"
        )
    try:
        depth = len(stacks.stack(stacks.capture_here()))
        cost_ns = min(stacks.nanoseconds_per_capture(2000) for _ in range(5))
    finally:
        stacks.stop()
    return ok(name, f"self-test passed; a stack of {depth} frames takes {cost_ns:.0f} ns")


def check_autograd() -> HealthCheck:
    name = "autograd"
    torch = torch_or_reason()
    if isinstance(torch, str):
        return absent(
            name, f"torch is {torch}", "install torch to attribute backward kernels to their forward lines"
        )
    try:
        from profiling_lab import _recorder
    except ImportError:
        return broken(name, _NO_RECORDER, "see _recorder")
    if _recorder.recording():
        return ok(name, f"in use by the running recording: {_recorder.autograd_state()}")
    reason = autograd_link.link(torch)
    _recorder.detach_autograd()
    if reason:
        return broken(
            name, reason, "backward kernels have no line with this torch version; everything else is recorded"
        )
    return ok(name, "self-test passed: backward kernels are attributed to their forward line")


def check_other_profilers() -> HealthCheck:
    name = "other profilers"
    if held := other_profilers.held_by():
        return broken(name, held, "CUPTI supports one tracing client at a time")
    injected = [
        f"{variable}={os.environ[variable]}"
        for variable in ("CUDA_INJECTION64_PATH", other_profilers.NVTX_VARIABLE)
        if os.environ.get(variable)
    ]
    if injected:
        return absent(name, f"set in the environment: {', '.join(injected)}", "unset it to record everything")
    return ok(name, "none is attached")
