# SPDX-License-Identifier: Apache-2.0
"""The GPU of a CUDA number in NVML, found without initialising CUDA in the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from profiling_lab.recording import gpu_facts
from profiling_lab.recording.energy.nvml import NvmlError, NvmlGpu, found_by
from profiling_lab.utils.devices import allocator

_LOOKUP_TIMEOUT_S = 60
_LOOKUP = "import json, runpy, sys; print(json.dumps(runpy.run_path(sys.argv[1])['gpus']()))"


def gpu_of(cuda_index: int) -> NvmlGpu:
    """Raises NvmlError if it cannot be read."""
    return NvmlGpu(lambda nvml: _find(nvml, cuda_index))


def _find(nvml: Any, index: int) -> Any:
    if index == 0 and "CUDA_VISIBLE_DEVICES" not in os.environ:
        try:
            if nvml.nvmlDeviceGetCount() == 1:
                return nvml.nvmlDeviceGetHandleByIndex(0)
        except Exception as error:
            raise NvmlError(f"NVML lists no GPUs: {error}") from None
    gpus = _cuda_gpus()
    if index >= len(gpus):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        within = "" if visible is None else f" with CUDA_VISIBLE_DEVICES={visible}"
        raise NvmlError(f"CUDA sees {len(gpus)} GPUs{within}, none with the number {index}")
    return found_by(gpus[index]["uuid"], gpus[index]["busLocation"])(nvml)


def _cuda_gpus() -> list[dict[str, Any]]:
    """The GPUs as CUDA numbers them here. Where CUDA is not in use yet, another process asks it: a program
    that has initialised CUDA can no longer fork workers that use it.
    """
    if allocator() is not None:
        return gpu_facts.gpus()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _LOOKUP, gpu_facts.__file__],
            capture_output=True,
            text=True,
            timeout=_LOOKUP_TIMEOUT_S,
            check=True,
        )
        gpus: list[dict[str, Any]] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NvmlError(f"CUDA could not be asked for its GPUs: {error}") from None
    return gpus
