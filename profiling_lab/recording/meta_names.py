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
NOT_IN_THE_META_TABLE = frozenset({GPU_INFO, SYSTEM_INFO, GENERATED_CODE, CELLS, SOURCE, ALLOCATIONS, WORK})
