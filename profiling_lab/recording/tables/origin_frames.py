# SPDX-License-Identifier: Apache-2.0
"""Insert the origin of generated code into stacks: the program's `forward` as if called by the generated
`call` (see generated_code.py).
"""

from __future__ import annotations

import json
from bisect import bisect_right

import numpy as np

from profiling_lab.recording.generated_code import written_name
from profiling_lab.recording.meta_names import GENERATED_CODE
from profiling_lab.recording.spool import Records, Spool, numbers_of

_MOST_ADDED = 1000
"""frames per stack, so that a crafted capture cannot grow without limit"""


def with_origins(spool: Spool, nodes: Records) -> Records:
    """`nodes` (one of each id) with the program's frames below those of generated code.

    A node of generated code becomes the innermost frame of its origin and keeps its id, so calls and callees
    need no change. Its own frame and the other frames of the origin get new ids.
    """
    for function in np.unique(nodes["function"]).tolist():
        if function < len(spool.strings):
            spool.strings[function] = written_name(spool.strings[function])
    known = json.loads(spool.meta.get(GENERATED_CODE, "{}"))
    if not known:
        return nodes
    number = numbers_of(spool.strings)
    file_of = {number(path): path for path in known["files"]}
    lines_of = {path: [line for line, _ in entries] for path, entries in known["files"].items()}
    changed, added = nodes.copy(), []
    free = int(nodes["id"].max(initial=0)) + 1
    deeper: dict[int, int] = {0: 0}
    for row in range(len(changed)):  # ascending ids: callers come before callees
        node = changed[row]
        deeper[int(node["id"])] = shift = deeper.get(int(node["parent"]), 0)
        node["depth"] += shift
        path = file_of.get(int(node["file"]))
        at = bisect_right(lines_of[path], int(node["line"])) - 1 if path else -1
        chain = known["files"][path][at][1] if path and at >= 0 and shift < _MOST_ADDED else []
        chain = chain[:_MOST_ADDED]
        for frame in chain:
            above = node.copy()
            above["id"], free = free, free + 1
            added.append(above)
            file, function, first, line = known["frames"][frame]
            node["parent"], node["depth"] = above["id"], node["depth"] + 1
            node["file"], node["function"] = number(file), number(function)
            node["first_line"], node["line"] = first, line
        deeper[int(node["id"])] = shift + len(chain)
    return np.concatenate([changed, np.array(added, dtype=nodes.dtype)]) if added else changed
