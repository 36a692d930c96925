# SPDX-License-Identifier: Apache-2.0
"""The code of a notebook's cell stands in no file: it goes by the cell's number, In[3], as users know it."""

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
    """Meta entry: for each cell that this process ran, the file it was compiled under and its number.

    JSON, none outside of IPython. A cell that ran again unchanged has its last number. Raises nothing: an
    IPython that does not tell has none.
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
    """The files of cells get their cell's number for a name."""
    names: dict[str, str] = json.loads(spool.meta.get(CELLS, "{}"))
    for file in set(nodes["file"].tolist()) if names else ():
        if file < len(spool.strings):
            spool.strings[file] = names.get(spool.strings[file], spool.strings[file])
