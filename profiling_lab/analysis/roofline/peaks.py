# SPDX-License-Identifier: Apache-2.0
"""The peak rates of a GPU: measured on the machine, or figures of the vendor.

Measured rates are what a good program reaches, so 100 % can be reached; a vendor's figure is an upper bound
that nothing reaches. Both are named in every output.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from profiling_lab.analysis import measured_file
from profiling_lab.errors import UnreadableInputError, UsageError
from profiling_lab.records import dataclass

SCHEMA = "profiling-lab-peaks/1"
MEASURED, VENDOR = "measured", "vendor figures"


@dataclass(frozen=True, slots=True)
class Peaks:
    """Rates of one GPU."""

    gpu: str
    source: str
    """MEASURED, with the date, or VENDOR"""
    memory_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    """by what the FLOPs are done in: bfloat16, float16, tf32, float32, float64, float8, int8"""
    driver: str = ""
    others: Mapping[str, float] = field(default_factory=dict)
    """further rates and times, by name with unit: l2_bytes_per_s, launch_ns, host_to_device_bytes_per_s"""

    @property
    def is_measured(self) -> bool:
        return self.source.startswith(MEASURED)


def _tensor(memory: float, half: float, tf32: float, single: float, double: float, eight: float = 0) -> Any:
    """Terabytes and teraflops per second, dense."""
    rates = {"bfloat16": half, "float16": half, "tf32": tf32, "float32": single, "float64": double}
    rates |= {"float8": eight, "int8": eight} if eight else {}
    return memory * 1e12, {name: rate * 1e12 for name, rate in rates.items()}


# Data sheets, SXM forms where there are several; the first pattern that matches.
_VENDOR: tuple[tuple[str, Any], ...] = (
    (r"\bH200\b", _tensor(4.8, 989.5, 494.7, 67, 67, 1979)),
    (r"\bGH200\b", _tensor(4.0, 989.5, 494.7, 67, 67, 1979)),
    (r"\bH100 PCIe\b", _tensor(2.0, 756, 378, 51, 51, 1513)),
    (r"\bH100 NVL\b", _tensor(3.9, 835, 417, 60, 60, 1671)),
    (r"\bH100\b", _tensor(3.35, 989.5, 494.7, 67, 67, 1979)),
    (r"\bB200\b", _tensor(8.0, 2250, 1125, 75, 37, 4500)),
    (r"\bA100.*80GB\b", _tensor(2.039, 312, 156, 19.5, 19.5)),
    (r"\bA100\b", _tensor(1.555, 312, 156, 19.5, 19.5)),
    (r"\bA10G?\b", _tensor(0.6, 125, 62.5, 31.2, 0.49)),
    (r"\bL40S\b", _tensor(0.864, 362, 183, 91.6, 1.4, 733)),
    (r"\bL4\b", _tensor(0.3, 121, 60, 30.3, 0.47, 242)),
    (r"\bRTX 4090\b", _tensor(1.008, 165.2, 82.6, 82.6, 1.3, 330)),
    (r"\bRTX 3090\b", _tensor(0.936, 71, 35.6, 35.6, 0.56)),
    (r"\bV100\b", (0.9e12, {"float16": 125e12, "float32": 15.7e12, "float64": 7.8e12})),
    (r"\bT4\b", (0.32e12, {"float16": 65e12, "float32": 8.1e12, "float64": 0.25e12})),
)


def vendor_peaks(gpu: str) -> Peaks | None:
    """None for a GPU that is not in the table."""
    name = gpu.replace("-", " ")
    for pattern, (memory, flops) in _VENDOR:
        if re.search(pattern, name):
            return Peaks(gpu, VENDOR, memory, flops)
    return None


def cache_file(gpu: str) -> Path:
    """Where the measured rates of GPUs of this name are kept on this machine."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "profiling_lab" / f"peaks-{re.sub(r'[^A-Za-z0-9]+', '_', gpu).strip('_')}.json"


def save(peaks: Peaks, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    measured_file.write(path, SCHEMA, asdict(peaks))


def load(path: Path) -> Peaks:
    """Raises UnreadableInputError if the file is not one that `save` wrote."""
    data = measured_file.read(path)
    try:
        if data.pop("schema") != SCHEMA:
            raise KeyError
        peaks = Peaks(**data)
        rates = [peaks.memory_bytes_per_s, *peaks.flops_per_s.values()]
        if not all(isinstance(rate, (int, float)) and rate > 0 for rate in rates):
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UnreadableInputError(
            f"{path} does not hold the rates of a GPU: expected what `profiling-lab peaks -o FILE` writes"
        ) from None
    return peaks


def peaks_of(gpu: str, file: str | os.PathLike[str] | None = None) -> Peaks | None:
    """The rates for a recording of this GPU: from `file`, else measured on this machine, else the vendor's.

    Raises UsageError if `file` is about another GPU.
    """
    if file is not None:
        given = load(Path(file))
        if gpu and given.gpu != gpu:
            raise UsageError(f"{file} has the rates of {given.gpu}, but the recording is from {gpu}")
        return given
    if not gpu:
        return None
    cached = cache_file(gpu)
    if cached.is_file():
        try:
            found = load(cached)
        except UnreadableInputError:  # damaged: measure again
            return vendor_peaks(gpu)
        if found.gpu == gpu:
            return found
    return vendor_peaks(gpu)
