# SPDX-License-Identifier: Apache-2.0
"""The GPUs that torch.profiler lists in `deviceProperties`."""

from __future__ import annotations

from typing import Any

from profiling_lab.trace.extras import Device
from profiling_lab.trace.facts import Gpu, whole_number


def gpu_of(device: dict[str, Any]) -> Gpu:
    major, minor = device.get("computeMajor"), device.get("computeMinor", 0)
    return Gpu(
        name=str(device.get("name", "")),
        compute=f"{major}.{minor}" if major else "",
        multiprocessors=whole_number(device.get("numSms"), 0),  # word: quoted
        memory_bytes=whole_number(device.get("totalGlobalMem"), 0),
    )


def listed_devices(properties: tuple[dict[str, Any], ...]) -> dict[int, Device]:
    """The devices of `deviceProperties` of torch.profiler."""

    def number(facts: dict[str, Any], name: str) -> int | None:
        value = whole_number(facts.get(name), 0)
        return value if value > 0 else None

    found = {}
    for i, facts in enumerate(properties):
        threads, warp = number(facts, "maxThreadsPerMultiprocessor"), number(facts, "warpSize")
        found[whole_number(facts.get("id"), i)] = Device(
            name=str(facts.get("name", "")),
            compute=number(facts, "computeMajor"),
            sm_count=number(facts, "numSms"),
            memory_bytes_per_s=None,
            warps_per_sm=threads // warp if threads and warp else None,
            blocks_per_sm=number(facts, "maxBlocksPerMultiProcessor"),
            registers_per_sm=number(facts, "regsPerMultiprocessor"),
            shared_bytes_per_sm=number(facts, "sharedMemPerMultiprocessor"),
        )
    return found
