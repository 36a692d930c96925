# SPDX-License-Identifier: Apache-2.0
"""The text of the lines that a recording names, read when its file is written. In the user's own code a line
of a statement that goes over several has the text of the statement.

A file is left out if it may differ from the code that ran: it was changed after the program started, or it is
read on another machine. An unknown text is better than a wrong one.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import linecache
import os
import socket
import stat
import time
import tokenize
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from profiling_lab.recording.meta_names import CELLS, SOURCE

MOST_CHARACTERS = 200
"""of a line or statement; the rest is cut off"""

_MOST_BYTES = 16 << 20
"""of a file; no module that a person wrote is larger"""
_FORKED_WITHOUT_EXEC = 0x40  # PF_FORKNOEXEC of Linux, in the flags of /proc/PID/stat
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def conditions() -> dict[str, str]:
    """Metadata: the machine of this process, and when its program started. Without it no text is read."""
    return {SOURCE: json.dumps({"machine": _machine(), "started_ns": _started_ns()})}


def _machine() -> str:
    """Distinguishes machines. The capture has this hash, not the host name."""
    return hashlib.sha256(socket.gethostname().encode(errors="replace")).hexdigest()[:16]


def _started_ns() -> int | None:
    """When this program began, in nanoseconds since 1970. The code of a fork is that of its parent."""
    process = "self"
    try:
        while True:
            facts = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            process, flags, tick = facts[1], int(facts[6]), int(facts[19])
            if not flags & _FORKED_WITHOUT_EXEC:
                break  # else look at the parent, or at an older process that adopted the orphan
    except (OSError, ValueError, IndexError):
        return None
    # The tick is rounded down, so the program began before the next one.
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - (tick + 1) * 1_000_000_000 // _TICKS_PER_S
    return time.time_ns() - age_ns


def texts(meta: dict[str, str], process: int, lines: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """The text of each of these lines (file, number), as far as it is known. Never raises."""
    try:
        noted: dict[str, Any] = json.loads(meta.get(SOURCE, "{}"))
        cells = _cells(meta) if process == os.getpid() else {}
        started_ns = noted["started_ns"] if noted.get("machine") == _machine() else None
    except (ValueError, TypeError, AttributeError, KeyError):
        return {}
    if not noted:
        return {}
    by_file: dict[str, list[int]] = {}
    for file, number in lines:
        by_file.setdefault(file, []).append(number)
    from profiling_lab.trace.ownership import Ownership  # numpy, which a recorded process does not need

    found, own = {}, Ownership()
    for file, numbers in by_file.items():
        code = cells.get(file)
        if code is None:
            code = _unchanged(file, started_ns) if isinstance(started_ns, int) else []
        whole = _statements(code, numbers) if file in cells or own.is_own(file) else {}
        for number in numbers:
            line = code[number - 1] if 0 < number <= len(code) else ""
            if text := _shown(whole.get(number, line)):
                found[file, number] = text
    return found


def _statements(code: list[str], numbers: Iterable[int]) -> dict[int, str]:
    """For those of these lines that are parts of a statement over several which holds no others, its text."""
    simple = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr, ast.Assert, ast.Raise)
    found, wanted = dict[int, str](), set(numbers)
    try:
        for node in ast.walk(ast.parse("".join(code))):
            if isinstance(node, simple) and node.end_lineno is not None and node.end_lineno > node.lineno:
                mine = wanted.intersection(range(node.lineno, node.end_lineno + 1))
                found |= dict.fromkeys(mine, ast.unparse(node) if mine else "")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return found


def _shown(line: str) -> str:
    """One line without its indent and without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in line).strip()[:MOST_CHARACTERS].rstrip()


def _cells(meta: dict[str, str]) -> dict[str, list[str]]:
    """By their number, such as In[3], the lines of the cells that this process ran. They are in no file."""
    found = {}
    for file, number in json.loads(meta.get(CELLS, "{}")).items():
        entry = linecache.cache.get(file, ())
        if len(entry) == 4:  # not a lazy entry
            found[number] = list(entry[2])
    return found


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)  # a pipe would wait for its writer


def _unchanged(path: str, before_ns: int) -> list[str]:
    """The lines of a file that was last changed before this time; none if it is not known to be so."""
    if not path.startswith("/"):  # relative to a folder that the program may have left
        return []
    try:
        with open(path, "rb", opener=_open) as stream:
            state = os.fstat(stream.fileno())
            if not stat.S_ISREG(state.st_mode) or state.st_size > _MOST_BYTES:
                return []
            content = stream.read(_MOST_BYTES)
            state = os.fstat(stream.fileno())
        # A copy may keep the time of its content (rsync, cp -p), but not that of its file.
        if max(state.st_mtime_ns, state.st_ctime_ns) > before_ns:
            return []
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        with io.TextIOWrapper(io.BytesIO(content), encoding) as code:
            return code.readlines()
    except (OSError, ValueError, SyntaxError, LookupError):
        return []
