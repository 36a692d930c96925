# SPDX-License-Identifier: Apache-2.0
"""Names of the meta entries that become tables of their own instead of PYREC_META rows.

Here, and not beside those tables: the recorder names them before the script runs, when numpy is not yet imported.
"""

from __future__ import annotations

GPU_INFO = "gpu_info"
SYSTEM_INFO = "system_info"
PROCESS_NAME = "process_name"
