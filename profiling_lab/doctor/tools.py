# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's command line tools. Recording needs none of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from glob import glob

from profiling_lab.doctor.check import HealthCheck, absent, ok

# Where installers put tools without changing PATH; newest last.
_PLACES = {
    "nsys": ("/opt/nvidia/nsight-systems/*/bin/nsys", "/opt/nvidia/nsight-systems/*/target-linux-x64/nsys"),
    "ncu": ("/opt/nvidia/nsight-compute/*/ncu",),
    "nvcc": (),
}
_PURPOSE = {
    "nsys": "only needed to compare with Nsight Systems: `profiling-lab record` does not use it",
    "ncu": "needed for hardware counters of one kernel, not for recording",
    "nvcc": "needed to build the CUDA kernels of the ops, not to run them",
}


def check_nsys() -> HealthCheck:
    return _check_tool("nsys")


def check_ncu() -> HealthCheck:
    return _check_tool("ncu")


def check_nvcc() -> HealthCheck:
    return _check_tool("nvcc")


def find_tool(name: str) -> tuple[str | None, bool]:
    """Its path, None if it is not there, and whether it is on PATH."""
    if path := shutil.which(name):
        return path, True
    elsewhere = [
        *glob(f"/usr/local/cuda*/bin/{name}"),
        *(p for place in _PLACES[name] for p in glob(place)),
    ]
    return (sorted(elsewhere)[-1] if elsewhere else None), False


def _check_tool(name: str) -> HealthCheck:
    path, on_path = find_tool(name)
    if path is None:
        return absent(name, "not found", _PURPOSE[name])
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return absent(name, f"{path} does not run: {error}", f"reinstall it; {_PURPOSE[name]}")
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        return absent(name, f"{path} does not run: {said[-1] if said else done.returncode}", _PURPOSE[name])
    versions = re.findall(r"\d+\.\d+[\d.]*", done.stdout)
    version = max(versions, key=len) if versions else "unknown version"
    return ok(name, f"{version} at {path}", "" if on_path else f"not on PATH: add {path.rsplit('/', 1)[0]}")
