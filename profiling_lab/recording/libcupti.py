# SPDX-License-Identifier: Apache-2.0
"""Find libcupti without importing torch, which takes seconds and loads its own copy."""

from __future__ import annotations

import os
import re
from importlib import metadata
from pathlib import Path

OVERRIDE = "PROFILING_LAB_CUPTI"
_WHEELS = ("nvidia-cuda-cupti", "nvidia-cuda-cupti-cu13", "nvidia-cuda-cupti-cu12")
_LIBRARY = re.compile(r"libcupti\.so(\.\d+)*$")


def torch_cuda_major() -> int | None:
    """The CUDA major version of the installed torch; None: no torch, a CPU build, or unknown."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
    match = re.search(r"\+cu(\d+)\d$", version)
    return int(match.group(1)) if match else None


def candidates() -> list[str]:
    """Candidates, best first: the wheels that torch uses, conda, the CUDA toolkit, the loader's search
    path.
    """
    found: list[Path] = []
    for wheel in _WHEELS:
        try:
            names = metadata.files(wheel) or []
        except metadata.PackageNotFoundError:
            continue
        found += [Path(str(name.locate())) for name in names if _LIBRARY.search(name.name)]
    for variable, folders in {
        "CONDA_PREFIX": ("lib",),
        "CUDA_HOME": ("extras/CUPTI/lib64", "lib64", "lib"),
        "CUDA_PATH": ("extras/CUPTI/lib64", "lib64", "lib"),
    }.items():
        if root := os.environ.get(variable):
            found += [path for folder in folders for path in sorted(Path(root, folder).glob("libcupti.so*"))]
    for folder in ("extras/CUPTI/lib64", "lib64", "lib", "targets/x86_64-linux/lib"):
        found += sorted(Path("/usr/local/cuda", folder).glob("libcupti.so*"))

    major = torch_cuda_major()
    unique = list(dict.fromkeys(str(path) for path in found if path.is_file()))
    fitting = [path for path in unique if major is None or _major_of(path) in (None, major)]
    return [*fitting, *(f"libcupti.so.{n}" for n in ((major,) if major else (13, 12)))]


def _major_of(path: str) -> int | None:
    """The major version from libcupti.so.13 or the target of libcupti.so; CUDA 12's file may have a year."""
    match = re.search(r"libcupti\.so\.(\d+)", os.path.realpath(path)) or re.search(
        r"libcupti\.so\.(\d+)", path
    )
    number = int(match.group(1)) if match else None
    return number if number is not None and number < 100 else None
