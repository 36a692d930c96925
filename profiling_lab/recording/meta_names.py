# SPDX-License-Identifier: Apache-2.0
"""Names of the meta entries that go into tables of their own instead of PYREC_META rows.

Here, and not beside those tables, because the recorder names them before the script runs, and numpy must not
be imported by then.
"""

from __future__ import annotations

GPU_INFO = "gpu_info"
SYSTEM_INFO = "system_info"
PROCESS_NAME = "process_name"
GENERATED_CODE = "generated_code"
CELLS = "cells"
NOT_IN_THE_META_TABLE = frozenset({GPU_INFO, SYSTEM_INFO, GENERATED_CODE, CELLS})
