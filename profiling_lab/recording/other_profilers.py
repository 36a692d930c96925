# SPDX-License-Identifier: Apache-2.0
"""Detect other profilers in this process. CUPTI supports one client at a time."""

from __future__ import annotations

import os
import sys
from pathlib import Path

NVTX_VARIABLE = "NVTX_INJECTION64_PATH"
_UNDER_NSYS = "this process runs under Nsight Systems, which already uses CUPTI: run it without nsys"


def held_by() -> str | None:
    """One sentence about the profiler that already traces this process; None if there is none."""
    if "NSYS_PROFILING_SESSION_ID" in os.environ:
        return _UNDER_NSYS
    if "NV_NSIGHT_INJECTION_TRANSPORT_TYPE" in os.environ:
        return "this process runs under Nsight Compute, which already uses CUPTI: run it without ncu"
    if _mapped("libToolsInjection"):
        return _UNDER_NSYS
    if _mapped("libsanitizer-"):
        return (
            "this process runs under compute-sanitizer, which already uses CUPTI: run it without "
            "compute-sanitizer"
        )
    if torch_profiler_is_on():
        return "torch.profiler is recording, and CUPTI supports one client: start the recorder outside of it"
    return None


def suspect() -> str:
    """The likely CUPTI client if its name is not known: "" or the end of a sentence."""
    return "; Triton's Proton is loaded here" if _mapped("libproton") else ""


def torch_profiler_is_on() -> bool:
    """True while torch.profiler records CUDA activity in this process (emit_nvtx does not count)."""
    torch = sys.modules.get("torch")
    kind = getattr(getattr(getattr(torch, "_C", None), "_autograd", None), "_profiler_type", None)
    return kind is not None and "KINETO" in str(kind())


def foreign_nvtx_injection(ours: str) -> str | None:
    """The NVTX injection library that another tool set."""
    wanted = os.environ.get(NVTX_VARIABLE)
    return wanted if wanted and wanted != ours else None


def _mapped(prefix: str) -> bool:
    try:
        maps = Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return False
    return f"/{prefix}" in maps
