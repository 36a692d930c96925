# SPDX-License-Identifier: Apache-2.0
"""Keys of metadata that is stored in separate tables instead of PYREC_META rows.

They are not next to those tables, because the recorder uses them before the script runs, when numpy must
not be imported yet.
"""

from __future__ import annotations

GPU_INFO = "gpu_info"
SYSTEM_INFO = "system_info"
PROCESS_NAME = "process_name"
GENERATED_CODE = "generated_code"
CELLS = "cells"
SOURCE = "source"
ALLOCATIONS = "allocations"
WORK = "work"
ENERGY = "energy."
COUNTERS = "counters."
"""begin the names of several pieces"""
_STORED_ELSEWHERE = frozenset({GPU_INFO, SYSTEM_INFO, GENERATED_CODE, CELLS, SOURCE, ALLOCATIONS, WORK})


def is_in_the_meta_table(name: str) -> bool:
    return name not in _STORED_ELSEWHERE and not name.startswith((ENERGY, COUNTERS))
