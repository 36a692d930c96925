# SPDX-License-Identifier: Apache-2.0
"""Name the code of notebook cells by their number, such as In[3], because it has no file."""

from __future__ import annotations

import json
import linecache
import sys
from typing import TYPE_CHECKING, Any

from profiling_lab.recording.meta_names import CELLS

if TYPE_CHECKING:
    from profiling_lab.recording.spool import Records, Spool

_CELL = "Cell"


def numbers() -> dict[str, str]:
    """Metadata: for each cell that this process ran, its compile-time file name and its number.

    JSON, empty outside of IPython. A cell that ran again unchanged has its last number. Never raises; an
    unknown IPython version gives an empty result.
    """
    ipython: Any = sys.modules.get("IPython")
    names: dict[str, str] = {}
    try:
        describe = ipython.get_ipython().compile.format_code_name
        for file in list(linecache.cache):
            kind, name = describe(file) or ("", "")
            if kind == _CELL:
                names[file] = name
    except Exception:
        return {}
    return {CELLS: json.dumps(names)} if names else {}


def call_by_number(spool: Spool, nodes: Records) -> None:
    """Rename the files of cells to their cell's number."""
    names: dict[str, str] = json.loads(spool.meta.get(CELLS, "{}"))
    for file in set(nodes["file"].tolist()) if names else ():
        if file < len(spool.strings):
            spool.strings[file] = names.get(spool.strings[file], spool.strings[file])
