# SPDX-License-Identifier: Apache-2.0
"""The driver, the GPUs, and the permission to read hardware counters."""

from __future__ import annotations

import os
from collections import Counter
from functools import lru_cache
from pathlib import Path

from profiling_lab.analysis.roofline.peaks import cache_file, load
from profiling_lab.doctor.check import HealthCheck, absent, ok
from profiling_lab.doctor.nvml import Driver, read_driver
from profiling_lab.report.roofline.peaks import peaks_text

_OLDEST_ARCHITECTURE = (8, 0)
_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
_CAP_SYS_ADMIN = 21
_PERF_LEVEL = Path("/proc/sys/kernel/perf_event_paranoid")
_PERF_LEVEL_AT_MOST = 2  # Nsight Systems' installation guide: its CPU samples need 2 or less


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


def check_peaks() -> HealthCheck:
    """What `roofline` compares with."""
    name = "peaks"
    found = driver()
    if isinstance(found, str) or not found.gpus:
        return absent(name, "no GPU to measure", "")
    texts = []
    for gpu in dict.fromkeys(gpu.name for gpu in found.gpus):
        file = cache_file(gpu)
        if not file.is_file():
            advice = (
                "profiling-lab peaks measures them, in some seconds; without it roofline uses the vendor's"
            )
            return absent(name, f"the rates of {gpu} were not measured on this machine", advice)
        peaks = load(file)
        if peaks.driver and peaks.driver != found.version:
            return absent(
                name,
                f"the rates of {gpu} were measured with driver {peaks.driver}",
                "profiling-lab peaks measures them again",
            )
        texts.append(f"{gpu}, {peaks.source}: {peaks_text(peaks)}")
    return ok(name, "; ".join(texts))


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


def check_cpu_samples(level: Path = _PERF_LEVEL) -> HealthCheck:
    """nsys records Python backtraces of CUDA calls only where it may sample the CPU; we do not need it."""
    name = "cpu samples"
    without = "nsys records no Python backtraces without them; profiling-lab record does not need them"
    try:
        text = level.read_text().strip()
    except OSError as error:
        return absent(name, f"{level} cannot be read: {error.strerror}", without)
    try:
        number = int(text)
    except ValueError:
        return absent(name, f"{level} is {text!r}, not a number", without)
    found = f"{level.name} is {number}"
    if number <= _PERF_LEVEL_AT_MOST:
        return ok(name, f"{found}: nsys may take them")
    if _may_administrate():
        return ok(name, f"{found}, and this process is an administrator: nsys may take them")
    advice = f"`sysctl kernel.perf_event_paranoid={_PERF_LEVEL_AT_MOST}` as root; {without}"
    return absent(name, f"{found}: nsys may not take them", advice)


def _may_administrate() -> bool:
    if os.geteuid() == 0:
        return True
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False
