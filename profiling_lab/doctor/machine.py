# SPDX-License-Identifier: Apache-2.0
"""The driver, the GPUs, and the permission to read hardware counters."""

from __future__ import annotations

import os
from collections import Counter
from functools import lru_cache
from pathlib import Path

from profiling_lab.doctor.check import HealthCheck, absent, ok
from profiling_lab.doctor.nvml import Driver, read_driver

_OLDEST_ARCHITECTURE = (8, 0)
_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
_CAP_SYS_ADMIN = 21


@lru_cache(maxsize=1)
def driver() -> Driver | str:
    return read_driver()


def check_driver() -> HealthCheck:
    found = driver()
    if isinstance(found, str):
        return absent(
            "driver",
            found,
            "recordings on this machine contain only Python and NVTX; record on a machine with an NVIDIA GPU",
        )
    return ok("driver", f"{found.version}, supports CUDA up to {found.cuda[0]}.{found.cuda[1]}")


def check_gpus() -> HealthCheck:
    found = driver()
    if isinstance(found, str) or not found.gpus:
        return absent("gpu", "none", "`profiling-lab demo` analyses a trace that ships with the package")
    kinds = Counter(found.gpus)
    text = "; ".join(
        f"{count} x {gpu.name}, compute capability {gpu.compute_capability[0]}.{gpu.compute_capability[1]}, "
        f"{gpu.memory_bytes / 2**30:.0f} GiB"
        for gpu, count in kinds.items()
    )
    old = [gpu.name for gpu in kinds if gpu.compute_capability < _OLDEST_ARCHITECTURE]
    advice = (
        f"recording works; the custom ops need compute capability 8.0 ({', '.join(old)} is older)"
        if old
        else ""
    )
    return ok("gpu", text, advice)


def check_counters(parameters: Path = _DRIVER_PARAMETERS) -> HealthCheck:
    """ncu and metrics need hardware counters; recording does not."""
    name = "counters"
    try:
        lines = dict(line.split(":", 1) for line in parameters.read_text().splitlines() if ":" in line)
    except OSError:
        return absent(name, f"{parameters} cannot be read: no driver, or hidden by the container", "")
    if lines.get("RmProfilingAdminOnly", "1").strip() == "0":
        return ok(name, "all users may read them")
    if _may_administrate():
        return ok(name, "only administrators may read them, and this process is one")
    return absent(
        name,
        "only administrators may read them (ncu says ERR_NVGPUCTRPERM)",
        "run ncu as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0; "
        "recording does not need them",
    )


def _may_administrate() -> bool:
    if os.geteuid() == 0:
        return True
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False
