# SPDX-License-Identifier: Apache-2.0
"""The calls of the system in a recording of nsys (--trace=osrt, SQLite) or of strace (-f -ttt -T).

    python calls.py                # records convert.py into run.trace, with nsys or strace, whichever is here
    python calls.py run.trace      # calls by function: number, total time, mean, share of the time

A call of nsys is one of the C library, a call of strace one of the kernel: their names differ a little, and
the signals between threads that nsys lists are left out.
"""

from __future__ import annotations

import gzip
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

Call = tuple[str, int, int, int]
"""function, thread, start in ns, duration in ns"""
RECORDING = "run.trace"
PROGRAM = "convert.py"
WAITING_ONLY = ("wait4", "waitid", "clone", "clone3", "vfork", "execve", "exit_group")
"""calls that last as long as another process, or that do not return"""
SIGNALS = ("pthread_cond_signal", "pthread_cond_broadcast")
"""stay in the C library while no thread waits: Python makes three around each read, for its own lock"""
_CALL = re.compile(r"^(?:(?P<thread>\d+) +)?(?P<start>\d+\.\d+) (?P<name>\w+)\(.*<(?P<took>\d+\.\d+)>$")
_RESUMED = re.compile(
    r"^(?:(?P<thread>\d+) +)?(?P<start>\d+\.\d+) <\.\.\. (?P<name>\w+) resumed>.*<(?P<took>\d+\.\d+)>$"
)


class NotARecordingError(Exception):
    """The file is neither a recording of nsys nor one of strace."""


def read(path: Path | str) -> list[Call]:
    """Every call, in the order of the file."""
    try:
        begin = Path(path).read_bytes()[:16]
    except OSError as error:
        raise NotARecordingError(f"{path}: {error.strerror}") from None
    found = _of_nsys(path) if begin.startswith(b"SQLite format 3") else _of_strace(path, begin)
    if not found:
        raise NotARecordingError(
            f"{path} holds no call of the system: expected an SQLite export of `nsys profile --trace=osrt`, "
            "or what `strace -f -ttt -T -o FILE` writes"
        )
    return [call for call in found if call[0] not in (*WAITING_ONLY, *SIGNALS)]


def _of_nsys(path: Path | str) -> list[Call]:
    file = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return file.execute(
            "SELECT s.value, o.globalTid, o.start, o.end - o.start FROM OSRT_API o"
            " JOIN StringIds s ON s.id = o.nameId WHERE o.end IS NOT NULL ORDER BY o.start"
        ).fetchall()
    except sqlite3.Error as error:
        raise NotARecordingError(
            f"{path} has no table OSRT_API ({error}): record with --trace=osrt"
        ) from None
    finally:
        file.close()


def _of_strace(path: Path | str, begin: bytes) -> list[Call]:
    opened = gzip.open if begin.startswith(b"\x1f\x8b") else open
    found = []
    try:
        with opened(path, "rt", errors="replace") as lines:
            for line in lines:
                call = _CALL.match(line) or _RESUMED.match(line)
                if call:
                    thread, start_s, took_s = call["thread"] or 0, call["start"], call["took"]
                    found.append(
                        (call["name"], int(thread), round(float(start_s) * 1e9), round(float(took_s) * 1e9))
                    )
    except (OSError, EOFError) as error:
        raise NotARecordingError(f"{path}: {error}") from None
    return found


def by_function(calls: list[Call]) -> list[tuple[str, int, int]]:
    """(function, number, total ns), the longest first."""
    sums: dict[str, tuple[int, int]] = {}
    for name, _, _, took_ns in calls:
        number, total_ns = sums.get(name, (0, 0))
        sums[name] = (number + 1, total_ns + took_ns)
    return sorted(((name, *both) for name, both in sums.items()), key=lambda row: (-row[2], row[0]))


def commands(tool: str, python: str = sys.executable) -> list[tuple[str, ...]]:
    """How this tool records the program into run.trace."""
    if tool == "strace":
        return [("strace", "-f", "-ttt", "-T", "-o", RECORDING, python, PROGRAM)]
    options = ("--trace=osrt", "--osrt-threshold=0", "--sample=none", "--cpuctxsw=none")
    return [
        ("nsys", "profile", *options, "--force-overwrite=true", "-o", "run", python, PROGRAM),
        ("nsys", "export", "--type=sqlite", "--force-overwrite=true", "-o", RECORDING, "run.nsys-rep"),
    ]


def record() -> int:
    """Record the program, and say with which tool."""
    tool = next(filter(shutil.which, ("nsys", "strace")), None)
    if tool is None:
        sys.exit("calls.py: neither nsys nor strace is on the PATH: use the recording in recorded/")
    for command in commands(tool):
        print(*command, flush=True)
        status = subprocess.run(command).returncode
        if status:
            return status
    return 0


def main() -> None:
    if len(sys.argv) == 1:
        sys.exit(record())
    try:
        calls = read(sys.argv[1])
    except NotARecordingError as error:
        sys.exit(f"calls.py: {error}")
    all_ns = sum(took_ns for *_, took_ns in calls)
    print(f"{len(calls)} calls, {all_ns / 1e6:.3f} ms, summed over their threads")
    print(f"{'function':20} {'calls':>8} {'total ms':>10} {'mean us':>9} {'of the time':>12}")
    for name, number, total_ns in by_function(calls)[:12]:
        print(
            f"{name:20} {number:8} {total_ns / 1e6:10.3f} {total_ns / number / 1e3:9.1f}"
            f" {100 * total_ns / max(all_ns, 1):10.1f} %"
        )


if __name__ == "__main__":
    main()
